"""Writes and reads ``.metadata``, which makes data files a checkpoint. It is written last, atomically, with a checksum.

It is DCP's own pickle, followed by a line that DCP's reader ignores. Reading it runs only DCP's own code.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import re
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from fastio._native import crc32
from fastio.distributed.data_file import clear, folder_lock
from fastio.distributed.metadata_unpickler import unpickle
from fastio.errors import CheckpointError, CorruptFileError, FastIOError, TransferError, kind_of, shortened
from fastio.files.atomic_file import AtomicFile
from fastio.files.checkpoint_folders import DCP, STEPS, kind_of_folder, told_of_folder
from fastio.files.full_write import write_all
from fastio.files.open_file import opened_in_folder
from fastio.runtime.gc_pause import gc_paused
from fastio.sizes import exact_size

_NAME = ".metadata"
_OURS = re.compile(rf"(__\d+)?{re.escape(_NAME)}")
_MARK = b"\nfastio-crc32 "
_TRAILER = len(_MARK) + 8

logger = logging.getLogger("fastio.distributed")


def path_of(folder: str, rank: int | None = None) -> str:
    """Return the path of a checkpoint's metadata; with ``rank`` that of one rank's part, saved without collectives."""
    return os.path.join(folder, _NAME if rank is None else f"__{rank}{_NAME}")


def exists(folder: str, rank: int | None = None) -> bool:
    """Return whether a folder holds metadata, or anything of its name."""
    return os.path.lexists(path_of(folder, rank))


def commit(folder: str, rank: int | None, metadata: Metadata, durable: bool) -> None:
    """Make the folder's data files the checkpoint, then remove the data files of the checkpoint before.

    TransferError if the system refuses: the checkpoint before then still exists.
    """
    path = path_of(folder, rank)
    data = pickled(metadata)
    with folder_lock(folder) as is_locked:
        before = _references(path) or set()
        now = {info.relative_path for info in metadata.storage_data.values()}
        with AtomicFile(path, follow_link=False) as new:
            new.allocate(len(data))
            write_all(new.path, new.fd, memoryview(data), 0)
            new.commit(durable)
        others = _references_of_all(folder, except_for=path)
        if others is not None:
            clear(folder, before, now | others, leftovers=is_locked)


def pickled(metadata: Metadata) -> bytes:
    """Return what a metadata file holds: the pickle, and its checksum."""
    data = pickle.dumps(metadata)
    return data + _MARK + f"{crc32(data):08x}".encode()


def remove_leftovers(folder: str) -> None:
    """Remove data files of saves that were never completed: the next save may need their space."""
    with folder_lock(folder) as is_locked:
        kept = _references_of_all(folder)
        if kept is not None:
            clear(folder, set(), kept, leftovers=is_locked)


def read(folder: str, rank: int | None = None) -> Metadata:
    """Return the metadata of the checkpoint in a folder, written by fastio or by DCP.

    CheckpointError if there is none, CorruptFileError if it is damaged, TransferError if it cannot be read.
    """
    path = path_of(folder, rank)
    try:
        return read_file(path)
    except FileNotFoundError:
        raise _missing(folder, path) from None


def read_file(path: str) -> Metadata:
    """Return the metadata in a file. FileNotFoundError if there is none; else raises as :func:`read` does."""
    try:
        with opened_in_folder(path) as (fd, _), open(fd, "rb", closefd=False) as file:
            data = file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TransferError(error.errno or 0, "read", path) from error
    body = len(data) - _TRAILER
    checked = body > 0 and data[body : body + len(_MARK)] == _MARK
    if checked and data[body + len(_MARK) :] != f"{crc32(data[:body]):08x}".encode():
        raise CorruptFileError(
            path, None, f"its {exact_size(body)} do not match their CRC-32: it was damaged after it was written; "
            "restore it from a copy, or load another checkpoint",
        )  # fmt: skip
    try:
        with gc_paused():
            metadata, left = unpickle(data[:body] if checked else data)
    except Exception as error:  # unpickling damaged bytes may raise anything
        raise CorruptFileError(
            path, None, f"it cannot be unpickled: {type(error).__name__}: {shortened(error)}"
        ) from error
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise CorruptFileError(path, None, f"it holds {kind_of(metadata)}, not what DCP writes")
    if left:
        raise CorruptFileError(path, None, f"{left} bytes after its end are not what was written")
    return metadata


def _missing(folder: str, path: str) -> CheckpointError:
    if not os.path.isdir(folder):
        return CheckpointError(f"{folder}: there is no such folder; expected one that a checkpoint was saved into")
    if kind_of_folder(folder) == STEPS:
        return CheckpointError(f"{folder}: expected a checkpoint of {DCP}, found {told_of_folder(folder)}")
    held = sum(name.endswith(".distcp") for name in os.listdir(folder))
    return CheckpointError(
        f"{folder}: it holds no checkpoint: {os.path.basename(path)} is missing beside {held} data files, so no save "
        "into it was completed, or it was removed; load another checkpoint"
    )


def _references(path: str) -> set[str] | None:
    """Return the names of the data files that a metadata file refers to; None if it cannot be read."""
    try:
        state = os.stat(path)
        return set(_references_in(path, state.st_ino, state.st_size, state.st_mtime_ns))
    except FileNotFoundError:
        return None
    except (FastIOError, ValueError, AttributeError) as error:
        logger.warning("%s: data files of earlier saves are left where they are: %s", path, error)
        return None


@functools.lru_cache(maxsize=16)
def _references_in(path: str, *_state: int) -> frozenset[str]:
    """Return :func:`_references` of a file in a given state; cached, as a save needs them more than once."""
    folder, name = os.path.split(path)
    rank = None if name == _NAME else int(name.removeprefix("__").removesuffix(_NAME))
    infos: Any = read(folder, rank).storage_data.values()
    return frozenset(info.relative_path for info in infos)


def _references_of_all(folder: str, except_for: str | None = None) -> set[str] | None:
    """Return the names of the data files that any checkpoint in a folder refers to; None if one cannot be read."""
    found: set[str] = set()
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if _OURS.fullmatch(name) and path != except_for:
            references = _references(path)
            if references is None:
                return None
            found |= references
    return found
