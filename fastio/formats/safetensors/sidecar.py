"""The sidecar of a ``.safetensors`` file: a file of JSON beside it with checksums of its tensors.

``{"version":1,"size":…,"header":"…","crc32":{name:"…"},"sha256":{name:"…"}}``: ``size`` is that of the whole file,
``header`` the CRC-32 of all bytes before the tensors. Where one differs, the sidecar is another file's.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from fastio._native import crc32
from fastio.errors import ChecksumError, quoted
from fastio.files.open_file import opened_in_folder
from fastio.formats.safetensors.header_checksums import CRC_DIGITS, SHA_DIGITS, VERSION, check_version, is_hex, numbers
from fastio.formats.safetensors.tensor_checksums import AS_IT_IS, TensorChecksums
from fastio.formats.safetensors.tensor_table import TensorTable
from fastio.formats.small_reads import read_at
from fastio.remote.urls import is_remote
from fastio.sizes import exact_size

_SUFFIX = ".fastio-checksums.json"
_LARGEST = 256 << 20  # bytes; more than those of a million tensors


def name_of(path: str) -> str:
    """The path of a file's sidecar."""
    return path + _SUFFIX


def text(path: str, fd: int, size: int, table: TensorTable, known: TensorChecksums) -> bytes:
    """The content of the sidecar of an open file of ``size`` bytes."""
    value: dict[str, Any] = {"version": VERSION, "size": size, "header": _header_crc(path, fd, table)}
    value["crc32"] = {name: f"{crc:08x}" for name, crc in known.crc32.items()}
    if known.sha256 is not None:
        value["sha256"] = known.sha256
    return (json.dumps(value, indent=1) + "\n").encode()


def of_sidecar(path: str, fd: int, size: int, table: TensorTable) -> TensorChecksums | None:
    """The checksums in the sidecar of an open file of ``size`` bytes; None if the file at ``path`` has no sidecar.

    ChecksumError if it belongs to another file or is malformed, FormatError if a newer fastio wrote it, OSError if it
    cannot be read.
    """
    name = name_of(path)
    try:
        with _opened(name) as (sidecar, nbytes):
            if not is_remote(path) and not os.path.samestat(os.stat(path), os.fstat(fd)):
                return None  # a file object's, or the file was replaced since it was opened
            if nbytes > _LARGEST:
                raise _malformed(path, name, f"it has {exact_size(nbytes)}, expected at most {exact_size(_LARGEST)}")
            content = read_at(name, sidecar, 0, nbytes)
    except FileNotFoundError:
        return None
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, name, f"it is not the JSON it should be: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("version"), int):
        raise _malformed(path, name, "it has no version")
    check_version(name, value["version"])
    if value.get("size") != size:
        raise _stale(path, name, f"it is of a file of {quoted(value.get('size'))} bytes, this one has {size}")
    if value.get("header") != _header_crc(path, fd, table):
        raise _stale(path, name, "it is of a file with another header")
    crcs, hashes = value.get("crc32"), value.get("sha256")
    is_complete = _is_complete(crcs, table, CRC_DIGITS) and (hashes is None or _is_complete(hashes, table, SHA_DIGITS))
    if not isinstance(crcs, dict) or not is_complete:
        raise _malformed(path, name, "it does not have a checksum of hex digits for each tensor")
    return TensorChecksums(numbers(crcs, "".join(crcs.values())), hashes, name)


def _opened(name: str) -> contextlib.AbstractContextManager[tuple[int, int]]:
    if not is_remote(name):
        return opened_in_folder(name)
    from fastio.remote import cached_file  # not at import: few files are remote

    return cached_file.opened(name)


def _header_crc(path: str, fd: int, table: TensorTable) -> str:
    return f"{crc32(read_at(path, fd, 0, table.start)):08x}"


def _is_complete(digests: Any, table: TensorTable, digits: int) -> bool:
    if not isinstance(digests, dict) or digests.keys() != set(table.entries):
        return False
    texts = digests.values()
    if set(map(type, texts)) - {str} or set(map(len, texts)) - {digits}:
        return False
    return is_hex("".join(texts), digits * len(texts))


def _stale(path: str, name: str, why: str) -> ChecksumError:
    problem = f"its checksums in {name} are not this file's ({why}): the file was replaced after they were made"
    return ChecksumError(path, None, f"{problem}; run `fastio seal {path}` again, or remove {name}{AS_IT_IS}")


def _malformed(path: str, name: str, why: str) -> ChecksumError:
    problem = f"its checksums in {name} cannot be used: {why}"
    return ChecksumError(path, None, f"{problem}; run `fastio seal {path}` again, or remove that file{AS_IT_IS}")


def remove_old(path: str) -> tuple[str, ...]:
    """Remove the sidecar of the file that is being replaced. Returns notes."""
    name = name_of(path)
    try:
        os.unlink(name)
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (f"{name}, which has checksums of the old file, could not be removed: {error.strerror}",)
    return (f"{name}, which had checksums of the old file, was removed",)
