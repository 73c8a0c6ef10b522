"""The tensors of a folder of torch.distributed.checkpoint, as a conversion reads them."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from fastio.distributed import huggingface_metadata
from fastio.distributed import metadata as metadata_file
from fastio.distributed.boxes import are_rows, tile
from fastio.distributed.items_by_file import items_by_file, whole_items
from fastio.distributed.load_file import FileLoad
from fastio.distributed.reader import open_data_file
from fastio.distributed.stored_items import FORMAT, Stored
from fastio.errors import CorruptFileError, FormatError, TensorMissingError, UnsupportedError, quoted
from fastio.files.checkpoint_folders import DCP_METADATA
from fastio.formats.detect import SAFETENSORS
from fastio.memory.contiguous_chunks import packed
from fastio.models.conversion.source_tensors import Run, Source, SourceFile, SourceTensor
from fastio.models.conversion.woven import WovenPart, woven
from fastio.sizes import exact_size


class _Box(NamedTuple):
    """A part of a tensor: ``size`` elements from the index ``begin`` on, and where they lie."""

    begin: tuple[int, ...]
    size: tuple[int, ...]
    stored: Stored
    run: Run | None


def of_ranks(folder: str, key: str | None, stack: contextlib.ExitStack, policy: Any) -> Source:
    """Open what ranks saved by DCP: all of it, or the entry ``key`` and what is below it.

    It is a checkpoint of DCP's own format or fastio's if the folder has their metadata, else one of safetensors, each
    of which holds one rank's parts of tensors.

    FormatError for entries that are no tensors, TensorMissingError for a ``key`` that is not there, UnsupportedError
    for items that other storage wrote, CorruptFileError for what contradicts itself, CheckpointError for missing files.
    """
    if os.path.isfile(os.path.join(folder, DCP_METADATA)):
        metadata, file_format = metadata_file.read(folder), FORMAT
    else:
        metadata, file_format = huggingface_metadata.read(folder), SAFETENSORS
    names = _wanted(folder, list(metadata.state_dict_metadata), key)
    for stored in names:
        if not isinstance(metadata.state_dict_metadata[stored], TensorStorageMetadata):
            raise FormatError(
                f"{folder}: {quoted(stored)} is no tensor, but a pickled object, which only a checkpoint holds; "
                "convert one part by key='model', or what it is called"
            )
    tensors = {stored: metadata.state_dict_metadata[stored] for stored in names}
    files, boxes = _located(folder, tensors, metadata.storage_data, file_format, stack, policy)
    found = [_tensor(folder, name, tensors[stored], boxes[stored]) for stored, name in names.items()]
    return Source(files, found, list(names.values()), {}, None)


def _wanted(folder: str, stored: list[str], key: str | None) -> dict[str, str]:
    """The entries to convert, and the names that they get."""
    if key is None or key in stored:
        return {name: name for name in (stored if key is None else [key])}
    below = {name: name.removeprefix(f"{key}.") for name in stored if name.startswith(f"{key}.")}
    if not below:
        groups = sorted({name.partition(".")[0] for name in stored})
        alike = difflib.get_close_matches(key, [*stored, *groups], n=3) or groups[:5]
        raise TensorMissingError(
            f"{folder}: no key {quoted(key)} among the {len(stored)} entries; alike: {', '.join(map(quoted, alike))}"
        )
    return below


def _located(
    folder: str,
    tensors: dict[str, Any],
    infos: dict[Any, Any],
    file_format: str,
    stack: contextlib.ExitStack,
    policy: Any,
) -> tuple[list[SourceFile], dict[str, list[_Box]]]:
    """The open data files, and the boxes of each tensor in them."""
    files: list[SourceFile] = []
    boxes: dict[str, list[_Box]] = {name: [] for name in tensors}
    for relative, items in items_by_file(folder, whole_items(tensors), infos).items():
        path, fd, size = open_data_file(folder, relative, items, stack)
        file = SourceFile(path, fd, size, file_format, policy, _damaged)
        load = FileLoad(path, fd, size, policy, True, None, file_format)
        for item in items:
            load.add(item, infos[item.storage_index])
        for request in load.locate():
            index, stored = request.items[0].storage_index, request.stored
            _check(path, stored, tuple(request.items[0].lengths), tensors[index.fqn].properties.dtype)
            run = Run(file, stored.offset, stored.nbytes, stored.crc, stored.name)
            file.is_verified &= stored.crc is not None
            begin = tuple(index.offset or ())
            boxes[index.fqn].append(_Box(begin, stored.size, stored, run if stored.nbytes else None))
        files.append(file)
    return files, boxes


def _check(path: str, stored: Stored, size: tuple[int, ...], dtype: torch.dtype) -> None:
    if stored.dtype is None:
        raise UnsupportedError(
            f"{path}: {quoted(stored.name)} is stored as an object of torch.save that only torch reads; load it by "
            "torch.distributed.checkpoint with fastio.distributed.Reader, and save it by fastio.save_file"
        )
    if (stored.size, stored.dtype) != (size, dtype):
        raise CorruptFileError(
            path, stored.name, f"is {stored.dtype} {list(stored.size)}, expected {dtype} {list(size)}: the data does "
            "not match the metadata",
        )  # fmt: skip


def _damaged(run: Run) -> CorruptFileError:
    return CorruptFileError(
        run.file.path, run.name, f"its {exact_size(run.nbytes)} at offset {run.offset} do not match their CRC-32 "
        f"({run.crc or 0:08x}): the file was damaged after it was written; convert another checkpoint, or restore "
        "the file from a copy",
    )  # fmt: skip


def _tensor(folder: str, name: str, described: Any, boxes: list[_Box]) -> SourceTensor:
    shape, dtype = tuple(described.size), described.properties.dtype
    boxes.sort(key=lambda box: box.begin)
    if not tile(boxes, shape):
        raise CorruptFileError(
            folder,
            name,
            f"its parts do not fill its shape {list(shape)}: the metadata was altered",
        )
    held = [box for box in boxes if box.run is not None]
    runs = [box.run for box in held if box.run is not None]
    nbytes = prod(shape) * dtype.itemsize
    are_packed = all(box.stored.is_packed() for box in held)
    if are_packed and are_rows(boxes, shape):
        return SourceTensor(name, dtype, shape, nbytes, runs)

    def by_rows() -> Iterator[torch.Tensor]:
        if are_packed:
            return woven(shape, dtype.itemsize, [WovenPart(b.begin, b.size, b.run) for b in held if b.run is not None])
        tensor = torch.empty(shape, dtype=dtype)
        for box in held:
            if box.run is not None:
                part = tensor[tuple(slice(at, at + count) for at, count in zip(box.begin, box.size, strict=True))]
                part.copy_(box.stored.tensor(box.run.read()))
        return packed(tensor)

    return SourceTensor(name, dtype, shape, nbytes, runs, by_rows)
