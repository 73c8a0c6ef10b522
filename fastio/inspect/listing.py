"""Lists a file, or a model of several files: a folder with an index, as Hugging Face's libraries write it."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator

from fastio.errors import CorruptFileError, FormatError, shortened
from fastio.files.open_file import path_of
from fastio.inspect.contents import Contents
from fastio.inspect.file_contents import contents_of_file
from fastio.models.locate import is_remote_folder
from fastio.models.weight_files import WeightFiles, open_weights


def contents(path: str | os.PathLike[str]) -> Contents:
    """List what a file, or a folder of shards with an index, holds, without reading tensor bytes.

    Nothing in the file is run or built, so files of any origin can be listed. Raises CorruptFileError for a damaged
    file, FormatError for one of another format, and what ``open`` raises.
    """
    name = path_of("path", path)
    if name.endswith(".index.json") or os.path.isdir(name) or is_remote_folder(name):
        return _contents_of_shards(name)
    return contents_of_file(name)


def _contents_of_shards(path: str) -> Contents:
    """List the tensors of all shards that a folder's index, or an index named by ``path``, names.

    CorruptFileError for an index that is malformed or differs from the shards, FileNotFoundError for a missing shard,
    FormatError for a ``.pt`` that ``weights_only=True`` refuses.
    """
    with _opened(path) as weights:
        index = weights.shard_index
        for name, file in weights.file_of.items():
            if index is not None and name not in index.files:
                raise CorruptFileError(
                    index.path,
                    name,
                    f"is in {file.path}, but the index lacks it; download the index again",
                    noun="tensor",
                )
        files = tuple(file.path for file in weights.files)
        metadata = dict(weights.metadata() or {})
    if index is not None:
        metadata |= {key: shortened(value) for key, value in index.metadata.items()}
    shards = [contents_of_file(file) for file in files]
    tensors = tuple(tensor for shard in shards for tensor in shard.tensors)
    nbytes = sum(shard.nbytes for shard in shards)
    notes = tuple(f"{shard.path}: {note}" for shard in shards for note in shard.notes)
    sealed = all(shard.checksummed for shard in shards)
    return Contents(path, shards[0].format, nbytes, tensors, metadata, {}, (), notes, (), sealed, files)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[WeightFiles]:
    try:
        with open_weights(path, verify=False) as weights:
            yield weights
    except pickle.UnpicklingError as error:
        raise FormatError(f"{error}; or inspect each file by itself") from None
