"""Lists sharded safetensors: a folder with an index, as Hugging Face's libraries write it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping

from fastio.errors import CorruptFileError, FormatError, quoted, shortened
from fastio.files.open_file import opened
from fastio.formats.detect import LARGEST_HEADER, SAFETENSORS
from fastio.formats.small_reads import read_at
from fastio.inspect.contents import EXPECTED, Contents, check_regular, contents_of_file

_INDEX = ".safetensors.index.json"


def index_of(path: str) -> str:
    """The path of a folder's index, or the path itself. FormatError if the folder has none, or several."""
    if not os.path.isdir(path):
        return path
    found = sorted(name for name in os.listdir(path) if name.endswith(_INDEX))
    if len(found) != 1:
        has = f"the indexes {', '.join(found[:5])}" if found else "no index (*.safetensors.index.json)"
        raise FormatError(f"{path}: this folder has {has}; expected {EXPECTED}: name a file in it")
    return os.path.join(path, found[0])


def contents_of_shards(path: str) -> Contents:
    """List the tensors of all shards.

    CorruptFileError for an index that is malformed or differs from the shards, FileNotFoundError for a missing shard.
    """
    index = index_of(path)
    where, metadata = _read(index)
    folder = os.path.dirname(index)
    shards = []
    for name in sorted(set(where.values())):
        shard = os.path.join(folder, name)
        if not os.path.exists(shard):
            raise FileNotFoundError(
                errno.ENOENT, f"this shard is missing, which {os.path.basename(index)} names", shard
            )
        shards.append(contents_of_file(shard))
    _compare(index, where, shards)
    tensors = tuple(tensor for shard in shards for tensor in shard.tensors)
    files = tuple(shard.path for shard in shards)
    nbytes = sum(shard.nbytes for shard in shards)
    of_shards = {key: text for shard in shards for key, text in shard.metadata.items()}
    return Contents(path, SAFETENSORS, nbytes, tensors, of_shards | metadata, {}, (), (), (), False, files)


def _compare(index: str, where: Mapping[str, str], shards: list[Contents]) -> None:
    """Raise CorruptFileError unless each tensor is in the shard that the index names, and in no other."""
    found: dict[str, str] = {}
    for shard in shards:
        file = os.path.basename(shard.path)
        if shard.format != SAFETENSORS:
            raise CorruptFileError(index, None, f"its shard {quoted(file)} is a .{shard.format}, not a .safetensors")
        for tensor in shard.tensors:
            if tensor.name in found:
                raise CorruptFileError(index, tensor.name, f"is in two shards: {found[tensor.name]} and {file}")
            found[tensor.name] = file
    for name, file in where.items():
        if found.get(name) != file:
            there = f"it is in {found[name]}" if name in found else "that file lacks it"
            raise CorruptFileError(index, name, f"should be in {quoted(file)}, but {there}; download the shards again")
    for name, file in found.items():
        if name not in where:
            raise CorruptFileError(index, name, f"is in {file}, but the index lacks it; download the index again")


def _read(index: str) -> tuple[dict[str, str], dict[str, str]]:
    """The file of each tensor, a bare name, and the metadata, as text."""
    check_regular(index)
    with opened(index) as (fd, size):
        if size > LARGEST_HEADER:
            raise CorruptFileError(index, None, f"an index has at most {LARGEST_HEADER} bytes, this has {size}")
        text = read_at(index, fd, 0, size)
    try:
        plain = json.loads(text)
        where, metadata = plain["weight_map"], plain.get("metadata") or {}
        valid = all(isinstance(word, str) for pair in where.items() for word in pair) and isinstance(metadata, dict)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        said = shortened(f"{type(error).__name__}: {error}")
        raise CorruptFileError(index, None, f"expected JSON with a weight_map of names to files, got {said}") from None
    if not valid:
        raise CorruptFileError(index, None, "its weight_map is no map of names to files, or its metadata no map")
    for name, file in where.items():
        if os.path.basename(file) != file or file in ("", ".", "..") or "\0" in file:
            raise CorruptFileError(index, name, f"should be in {quoted(file)}, which is no name of a file beside it")
    return where, {key: shortened(value) for key, value in metadata.items()}
