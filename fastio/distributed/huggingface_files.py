"""The files of a checkpoint in safetensors: their names, and which of a folder's belong to it.

Whole tensors are in files as Hugging Face's models have them, with an index. Parts of tensors, of one rank a file, are
in files with the names of torch's ``HuggingFaceStorageWriter``; the offsets of the parts are in their headers, as
there. A list beside them says which of them are the checkpoint: without it, files of two saves could not be told apart.
"""

from __future__ import annotations

import json
import os
from typing import Any

from fastio.errors import CheckpointError, CorruptFileError, TransferError, quoted
from fastio.files.checkpoint_folders import SHARD_LIST, SHARD_NAME, told_of_folder
from fastio.files.open_file import opened_in_folder
from fastio.formats.small_reads import read_at
from fastio.models.locate import locate
from fastio.models.shards import INDEX_NAME, is_model_file
from fastio.sizes import exact_size

OFFSETS, VERSION = "DCP_SHARDING_INFO", "DCP_VERSION"
"""The keys of a header's metadata that hold the parts' offsets, and the version of that."""
SUFFIX = ".safetensors"
_LIST_VERSION = 1
_LARGEST_LIST = 64 << 20  # bytes


def model_name(number: int, count: int) -> str:
    """The name of a file of whole tensors; numbers begin with 1."""
    return f"model-{number:05d}-of-{count:05d}{SUFFIX}"


def shard_name(shard: int, number: int, count: int) -> str:
    """The name of a file of parts of tensors."""
    return f"shard-{shard:05d}-{model_name(number, count)}"


def is_own(name: str) -> bool:
    """Whether a file name is one that a save of a checkpoint gives."""
    return name == SHARD_LIST or SHARD_NAME.fullmatch(name) is not None or is_model_file(name)


def first_free(folder: str, count: int) -> int:
    """The first of ``count`` numbers that no file of parts in the folder has."""
    found = [int(match[1]) for match in map(SHARD_NAME.fullmatch, os.listdir(folder)) if match]
    return 1 if not found or min(found) > count else max(found) + 1


def exists(folder: str) -> bool:
    """Whether a folder holds a checkpoint, or a file of one."""
    return os.path.isdir(folder) and any(map(is_own, os.listdir(folder)))


def list_text(names: list[str]) -> bytes:
    """The content of the list of files."""
    return (json.dumps({"version": _LIST_VERSION, "files": names}, indent=1) + "\n").encode()


def files_of(folder: str) -> list[str]:
    """The paths of a checkpoint's files. No file of tensors is opened.

    They are those of the list; else those of the model that :func:`fastio.safe_open` finds; else all of safetensors, as
    torch's writer leaves them.

    CheckpointError if there are none, CorruptFileError for a list or an index that is none, TransferError if the system
    refuses.
    """
    try:
        names = sorted(os.listdir(folder))
    except NotADirectoryError:
        raise CheckpointError(
            f"{folder}: this is a file; expected a folder that a checkpoint was saved into, such as the one it is in"
        ) from None
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder}: there is no such folder; expected one that a checkpoint was saved into"
        ) from None
    except OSError as error:
        raise TransferError(error.errno or 0, "listing the folder", folder) from error
    if SHARD_LIST in names:
        return [os.path.join(folder, name) for name in listed(folder)]
    if f"model{SUFFIX}" in names or INDEX_NAME in names:
        return locate(folder).paths
    found = [os.path.join(folder, name) for name in names if name.endswith(SUFFIX)]
    if not found:
        if told := told_of_folder(folder):
            raise CheckpointError(f"{folder}: expected a checkpoint in files of safetensors, found {told}")
        raise CheckpointError(
            f"{folder}: it holds no checkpoint: there is no file of safetensors, so no save into it was completed; "
            "load another checkpoint"
        )
    return found


def listed(folder: str) -> list[str]:
    """The names in a folder's list of files; none if there is no list. Raises as :func:`files_of` does."""
    path = os.path.join(folder, SHARD_LIST)
    if not os.path.lexists(path):
        return []
    try:
        with opened_in_folder(path) as (fd, size):
            if size > _LARGEST_LIST:
                raise CorruptFileError(path, None, f"has {exact_size(size)}, expected a list of files")
            text = read_at(path, fd, 0, size)
    except OSError as error:
        raise TransferError(error.errno or 0, "read", path) from error
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    names = found.get("files") if isinstance(found, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise CorruptFileError(path, None, "is no list of files: it was damaged; load another checkpoint")
    if found.get("version") != _LIST_VERSION:
        raise CorruptFileError(
            path, None, f"is of version {quoted(found.get('version'))}, expected {_LIST_VERSION}: update it"
        )
    for name in names:
        if SHARD_NAME.fullmatch(name) is None:
            raise CorruptFileError(path, None, f"names {quoted(name)}, expected names of shards: it was altered")
    return names
