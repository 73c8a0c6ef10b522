"""Makes the sidecar of a ``.safetensors`` file: a file beside it with checksums of its tensors."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from fastio.arguments import Path, Progress
from fastio.errors import ChecksumError, FormatError, VolumeError
from fastio.files.atomic_file import write_durably
from fastio.files.open_file import check_regular, opened, path_of, refuse_folder
from fastio.files.unchanged import Unchanged
from fastio.formats import foreign
from fastio.formats.detect import HEAD_BYTES, SAFETENSORS, detect
from fastio.formats.safetensors import header_checksums, sidecar, tensor_table
from fastio.formats.safetensors.tensor_checksums import TensorChecksums
from fastio.formats.safetensors.tensor_table import TensorTable
from fastio.formats.small_reads import head
from fastio.inspect.tensor_digests import compare, digests
from fastio.progress import check_progress, shown
from fastio.runtime.native_errors import tensors_named
from fastio.volumes.opening import is_in_volume, refuse_remote


@dataclass(frozen=True, slots=True)
class Sealed:
    """The result: ``sidecar`` has checksums of ``tensors`` tensors, ``nbytes`` in all; if ``hashed``, SHA-256s, too."""

    path: str
    sidecar: str
    tensors: int
    nbytes: int
    hashed: bool


def seal(path: Path, *, hashes: bool = False, progress: Progress = None) -> Sealed:
    """Read a file of safetensors, and write the CRC-32s of its tensors into a sidecar; with ``hashes`` also SHA-256s.

    ``progress``: True for a progress bar, or a function of (bytes done, bytes in all), as for :func:`fastio.save`. The
    file itself stays as it is. A sidecar that was there is replaced, and keeps its SHA-256s if it had any. The
    sidecar is durable.

    ChecksumError names a tensor that does not match the checksums that the file has already; nothing is written then.
    CorruptFileError for a damaged header, FormatError for another format, VolumeError for an object of a volume,
    TransferError if the system refuses.

    >>> fastio.seal("model-00001-of-00002.safetensors", hashes=True)
    """
    path = path_of("path", path)
    check_progress(progress)
    refuse_remote(path)
    refuse_folder(path, "seal")
    if is_in_volume(path):
        raise VolumeError(
            f"{path}: checksums are written beside a file, and an object of a volume has no place for them; expected a "
            "file: seal it, load it and save it into the volume by fastio, which puts checksums into it"
        )
    check_regular(path)
    with shown(progress, f"sealing {os.path.basename(path)}") as told, opened(path) as (fd, size):
        if detect(head(path, fd, size, HEAD_BYTES), path) != SAFETENSORS:
            if said := foreign.problem_of(path, fd, size, "a file of safetensors"):
                raise FormatError(f"{path}: {said}")
            raise FormatError(
                f"{path}: expected a file of safetensors; a .pt has checksums of its own, and other files cannot have "
                "any: save what is in it as .pt or .safetensors"
            )
        unchanged = Unchanged(path, fd, size)
        table = tensor_table.read(path, fd, size)
        known = _known(path, fd, size, table)
        hashes = hashes or any(one.sha256 is not None for one in known)
        with tensors_named():
            found = digests(path, fd, size, table, hashes, told)
        for one in known:
            compare(path, table, one, found)
        content = sidecar.text(path, fd, size, table, found)
        unchanged.check("read", "seal it again")
    name = sidecar.name_of(path)
    write_durably(name, content)
    return Sealed(path, name, len(table.entries), table.nbytes, hashes)


def _known(path: str, fd: int, size: int, table: TensorTable) -> list[TensorChecksums]:
    """The checksums of this very file: not those of another one that a new sidecar is to replace."""
    found: list[TensorChecksums | None] = []
    with contextlib.suppress(ChecksumError):
        found.append(sidecar.of_sidecar(path, fd, size, table))
    try:
        found.append(header_checksums.of_header(path, table))
    except header_checksums.DamagedHeaderError:
        raise
    except ChecksumError:  # copied from another file
        pass
    return [one for one in found if one is not None and not one.rewritten]
