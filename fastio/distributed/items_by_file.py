"""Groups what is read of a checkpoint by the data files that hold it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from fastio.distributed import metadata as metadata_file
from fastio.errors import CorruptFileError


def items_by_file(folder: str, items: Iterable[ReadItem], infos: Mapping[Any, Any]) -> dict[Any, list[ReadItem]]:
    """Return the items by the names of their files, as DCP's metadata has them; ``infos`` are its storage data.

    CorruptFileError names an item of which the metadata do not say where it is.
    """
    by_file: dict[Any, list[ReadItem]] = {}
    for item in items:
        info = infos.get(item.storage_index)
        if info is None:
            path = metadata_file.path_of(folder)
            raise CorruptFileError(path, item.storage_index.fqn, "it does not say where this is stored")
        by_file.setdefault(getattr(info, "relative_path", None), []).append(item)
    return by_file


def whole_items(described: Mapping[str, Any]) -> Iterator[ReadItem]:
    """Yield items for everything that ranks stored of these entries of DCP's metadata, by their names."""
    for name, entry in described.items():
        if not isinstance(entry, TensorStorageMetadata):
            index, whole = MetadataIndex(name), torch.Size()
            yield ReadItem(LoadItemType.BYTE_IO, index, whole, index, whole, whole)
            continue
        for chunk in entry.chunks:
            index, zeros = MetadataIndex(name, chunk.offsets), torch.Size([0] * len(chunk.sizes))
            yield ReadItem(LoadItemType.TENSOR, index, zeros, index, zeros, chunk.sizes)
