"""Checks files: every byte against its CRC-32, and its SHA-256 if there is one, in bounded memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fastio import formats
from fastio.arguments import Path, Progress
from fastio.engine.load_plan import detected
from fastio.engine.record_checksums import verify_archive
from fastio.errors import CorruptFileError, FormatError
from fastio.files.open_file import not_a_file, path_of, refuse_folder
from fastio.formats import foreign
from fastio.formats.detect import NPY, PT, SAFETENSORS, is_legacy
from fastio.formats.pt.tensor_names import name_tensors
from fastio.formats.small_reads import head
from fastio.inspect.tensor_digests import verified
from fastio.progress import shown
from fastio.volumes.object_file import opened


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a check of ``records`` records (of safetensors: tensors) with ``nbytes`` bytes in all.

    ``checksummed`` is False if there are no checksums of its tensors (npy, safetensors of others without a sidecar,
    torch.save with CRCs off, or inside ``skip_data()``): then only its structure was checked, and of a ``.pt`` the
    other records that have one. ``hashed``: they were compared with SHA-256s, too.
    """

    path: str
    format: str
    records: int
    nbytes: int
    checksummed: bool
    hashed: bool = False


def verify(path: Path, *, progress: Progress = None) -> Verification:
    """Check every byte of a file against the CRC-32 stored with it, or beside it; the result says if there is none.

    Reads the file once, in small blocks. Raises CorruptFileError naming the record or tensor that is damaged,
    FormatError for a file that is none of pt, safetensors or npy, and what ``open`` raises (FileNotFoundError,
    IsADirectoryError, PermissionError). A zip file that is none of torch.save's is FormatError as well; its message
    says what opens it.

    ``progress``: True for a progress bar, or a function of (bytes done, bytes in all), as for :func:`fastio.save`.

    >>> fastio.verify("model.pt").checksummed
    True
    """
    name = path_of("path", path)
    refuse_folder(name, "verify")
    with shown(progress, f"verifying {os.path.basename(name)}") as told, opened(name) as (fd, size):
        file_format = detected(name, fd, size)
        if file_format == PT:
            try:
                archive, nbytes, _ = verify_archive(name, fd, size, told)
            except CorruptFileError as error:
                name_tensors(error)
                raise
            return Verification(name, file_format, len(archive.records), nbytes, archive.has_storage_crcs)
        if file_format == SAFETENSORS:
            return Verification(name, file_format, *verified(name, fd, size, told))
        if file_format == NPY:
            source = formats.module(file_format).source(name, fd, size)
            return Verification(name, file_format, len(source.regions), 0, False)
        first, irregular = head(name, fd, size, foreign.HEAD_BYTES), not_a_file(os.fstat(fd))
    if is_legacy(first):
        raise FormatError(
            f"{name}: it is in torch's legacy format, which has no checksums to verify; load it with fastio.load, and "
            "save it again"
        )
    raise FormatError(f"{name}: {irregular or foreign.problem(first) or foreign.unknown(first)}")
