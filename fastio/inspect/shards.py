"""Lists sharded safetensors: a folder with an index, as Hugging Face's libraries write it."""

from __future__ import annotations

from fastio.errors import CorruptFileError, shortened
from fastio.formats.detect import SAFETENSORS
from fastio.inspect.contents import Contents, contents_of_file
from fastio.models.weight_files import open_weights


def contents_of_shards(path: str) -> Contents:
    """List the tensors of all shards that a folder's index, or an index named by ``path``, names.

    CorruptFileError for an index that is malformed or differs from the shards, FileNotFoundError for a missing shard.
    """
    with open_weights(path, verify=False) as weights:
        index = weights.shard_index
        for name, file in weights.file_of.items():
            if index is not None and name not in index.files:
                raise CorruptFileError(
                    index.path, name, f"is in {file.path}, but the index lacks it; download the index again"
                )
        files = tuple(file.path for file in weights.files)
        metadata = dict(weights.metadata() or {})
    if index is not None:
        metadata |= {key: shortened(value) for key, value in index.metadata.items()}
    shards = [contents_of_file(file) for file in files]
    tensors = tuple(tensor for shard in shards for tensor in shard.tensors)
    nbytes = sum(shard.nbytes for shard in shards)
    notes = tuple(f"{shard.path}: {note}" for shard in shards for note in shard.notes)
    checksummed = all(shard.checksummed for shard in shards)
    return Contents(path, SAFETENSORS, nbytes, tensors, metadata, {}, (), notes, (), checksummed, files)
