"""Finds the files of a model: one file, a list of files, or a folder with an index of shards."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from fastio.errors import CorruptFileError, ShardMissingError, quoted
from fastio.files.checkpoint_folders import holds_shards, told_of_folder
from fastio.files.open_file import MISSING_MODEL, below_a_file, is_path, paths_of
from fastio.formats import foreign
from fastio.formats.detect import INDEX_SUFFIX
from fastio.formats.small_reads import read_at
from fastio.remote.urls import is_remote, joined, parent_of
from fastio.sizes import count_of, exact_size
from fastio.volumes.object_file import check_regular, opened
from fastio.volumes.opening import is_in_volume

_SUFFIXES = (".safetensors.index.json", ".safetensors")
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")  # a part of a model, which needs an index
_NAMES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# More than an index of a million tensors takes.
_LARGEST_INDEX = 256 << 20


class ShardIndex(NamedTuple):
    """An index: ``files`` maps names of tensors to names of files in the index's folder; ``metadata`` is any JSON."""

    path: str
    files: dict[str, str]
    metadata: dict[str, Any]


class Located(NamedTuple):
    """The files of a model, in order, and the index that named them, if there is one."""

    paths: list[str]
    shard_index: ShardIndex | None


def locate(where: Any, missing: str = MISSING_MODEL) -> Located:
    """Find the files of a path, a folder or a list of paths. No file of tensors is opened.

    Of a folder these are ``model.safetensors``; else those that ``model.safetensors.index.json`` names; else
    ``pytorch_model.bin``, or those that ``pytorch_model.bin.index.json`` names; else the only other index, or the only
    other file, of safetensors, unless its name is a shard's.

    Raises FileNotFoundError for a path that is not there, with the text ``missing``, and for a folder without any,
    ShardMissingError for a file that only the index has, CorruptFileError for an index that is none, ValueError for a
    list without a path, TypeError for what is no path.
    """
    located = named(where, missing)
    if located.shard_index is not None:
        for path in located.paths:
            check_present(path, located.shard_index)
    return located


def named(where: Any, missing: str = MISSING_MODEL) -> Located:
    """As :func:`locate`; files that an index names may be missing."""
    if not is_path(where):
        return Located(_listed(where), None)
    path = os.fsdecode(where)
    if is_in_volume(path):
        return Located([path], None)
    if is_remote(path):
        return _named_remotely(path)
    try:
        os.stat(path)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, missing, path) from None
    except NotADirectoryError:
        raise below_a_file(path) from None
    if os.path.isdir(path):
        path = _in_folder(path, os.listdir(path))
    if not path.endswith(INDEX_SUFFIX):
        return Located([path], None)
    index = read_index(path)
    folder = os.path.dirname(path)
    return Located([os.path.join(folder, name) for name in sorted(set(index.files.values()))], index)


def is_remote_folder(path: str) -> bool:
    """Whether a path is the URL of a folder. RemoteError, also a FileNotFoundError, if it is one of nothing."""
    if not is_remote(path):
        return False
    from fastio.remote.place import place_of  # not at import: few models are remote

    return place_of(path).is_folder()


def _named_remotely(url: str) -> Located:
    from fastio.remote.place import place_of  # not at import: few models are remote

    if not url.endswith(INDEX_SUFFIX):
        if not is_remote_folder(url):
            return Located([url], None)
        url = _in_folder(url, place_of(url).names())
        if not url.endswith(INDEX_SUFFIX):
            return Located([url], None)
    index = read_index(url)
    return Located([joined(parent_of(url), name) for name in sorted(set(index.files.values()))], index)


def check_present(path: str, index: ShardIndex) -> None:
    """Raise ShardMissingError if a file that an index names is missing; remote ones are opened first."""
    if not is_remote(path) and not os.path.exists(path):
        raise missing_shard(path, index)


def missing_shard(path: str, index: ShardIndex) -> ShardMissingError:
    """The error for a file that an index names, and that is missing."""
    tensors = [tensor for tensor, file in index.files.items() if file == os.path.basename(path)]
    return ShardMissingError(
        path,
        f"{index.path} names this file for {count_of(len(tensors), 'tensor')} ({quoted(tensors[0])} is one), but it is "
        "missing: download or copy it again",
    )


def read_index(path: str) -> ShardIndex:
    """Read an index of shards. CorruptFileError if it is none, or if it names a file outside its folder."""
    check_regular(path)
    with opened(path) as (fd, size):
        if size > _LARGEST_INDEX:
            raise CorruptFileError(
                path, None, f"has {exact_size(size)}, expected an index of at most {exact_size(_LARGEST_INDEX)}"
            )
        text = read_at(path, fd, 0, size)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        known = foreign.problem(text[: foreign.HEAD_BYTES], "an index of shards in JSON")
        said = known if known and text[:1] != b"{" else f"is not the JSON it should be: {error}; download it again"
        raise CorruptFileError(path, None, said) from None
    files = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(files, dict) or not files:
        raise CorruptFileError(path, None, "has no weight_map of tensors to files: it is no index, or a damaged one")
    for name, file in files.items():
        if not isinstance(file, str) or file in ("", ".", "..") or "/" in file or "\0" in file:
            raise CorruptFileError(
                path,
                name,
                f"its file is {quoted(file)}, expected the bare name of a file in the same folder",
                noun="tensor",
            )
    metadata = found.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise CorruptFileError(path, "metadata", f"is {quoted(metadata)}, expected a map", noun="entry")
    return ShardIndex(path, files, metadata)


def _listed(where: Any) -> list[str]:
    paths = paths_of("filename", where, "a path, a folder or a list of paths")
    if not paths:
        raise ValueError("the list of files is empty; name at least one")
    return paths


def _in_folder(folder: str, names: Iterable[str]) -> str:
    """The file of a folder that holds, or indexes, a model, among the names that the folder has."""
    names = sorted(names)
    for name in _NAMES:
        path = joined(folder, name) if is_remote(folder) else os.path.join(folder, name)
        if name in names and (is_remote(folder) or os.path.isfile(path)):
            return path
    expected = " or ".join(_NAMES)
    if holds_shards(folder):
        problem = (
            f"expected {expected}, found parts of tensors, as ranks saved them: make whole files of them by "
            "fastio.distributed.consolidate; `fastio verify` takes the parts by their names"
        )
        raise FileNotFoundError(errno.ENOENT, problem, folder)
    for suffix in _SUFFIXES:
        found = [name for name in names if name.endswith(suffix)]
        if len(found) == 1 and not _SHARD.search(found[0]):
            return joined(folder, found[0]) if is_remote(folder) else os.path.join(folder, found[0])
        if found and all(map(_SHARD.search, found)):
            problem = (
                f"expected {expected}, found {quoted(', '.join(found))}, shards without an index: a save was "
                "interrupted, or the index was not copied; save or copy it again"
            )
            raise FileNotFoundError(errno.ENOENT, problem, folder)
        if found:
            problem = f"expected {expected}, found {quoted(', '.join(found))}: name one, or a list of all"
            raise FileNotFoundError(errno.ENOENT, problem, folder)
    held = "" if is_remote(folder) else told_of_folder(folder)
    said = held or "no file of safetensors: check the path, or name a file of tensors"
    raise FileNotFoundError(errno.ENOENT, f"expected {expected}, found {said}", folder)
