"""Lists what a file holds: tensors, where they lie, what they share, metadata. Reads no tensor bytes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from fastio import formats
from fastio.errors import ChecksumError, CorruptFileError, FormatError, shortened
from fastio.files.open_file import check_regular, opened
from fastio.formats.detect import HEAD_BYTES, PT, SAFETENSORS, detect
from fastio.formats.safetensors import format as safetensors_format
from fastio.formats.safetensors import tensor_table
from fastio.formats.small_reads import head
from fastio.memory.load_buffers import Region

EXPECTED = "a .pt, .safetensors or .npy file, or a folder with a model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its bytes begin at ``start`` of its storage, which ``region`` locates in the file.

    ``stride`` counts elements, ``start`` bytes. ``file`` is the path of the file that holds it.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    file: str
    region: Region
    start: int

    @property
    def offset(self) -> int:
        """The offset of the tensor's first element in the file, in bytes."""
        return self.region.offset + self.start

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor's elements."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file, or a folder of shards, holds. ``nbytes`` is the size of all its files.

    ``values`` are plain values of a ``.pt``, as text by name. ``refused`` are the classes in its pickle that
    ``fastio.load`` refuses. ``missing`` says which tensors are not listed, and why. ``checksummed``: tensors have
    CRC-32s.
    """

    path: str
    format: str
    nbytes: int
    tensors: tuple[StoredTensor, ...]
    metadata: dict[str, str]
    values: dict[str, str]
    refused: tuple[str, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...]
    checksummed: bool
    files: tuple[str, ...]

    def shared(self) -> list[tuple[str, ...]]:
        """The names of the tensors in each storage that has several."""
        together: dict[tuple[str, str], list[str]] = defaultdict(list)
        for tensor in self.tensors:
            if tensor.region.nbytes:
                together[tensor.file, tensor.region.name].append(tensor.name)
        return [tuple(names) for names in together.values() if len(names) > 1]


def contents(path: str | os.PathLike[str]) -> Contents:
    """List what a file, or a folder of shards with an index, holds, without reading tensor bytes.

    Nothing in the file is run or built, so files of any origin can be listed. Raises CorruptFileError for a damaged
    file, FormatError for one of another format, and what ``open`` raises.
    """
    name = os.fsdecode(path)
    if os.path.isdir(name) or name.endswith(".index.json"):
        from fastio.inspect.shards import contents_of_shards

        return contents_of_shards(name)
    return contents_of_file(name)


def contents_of_file(path: str) -> Contents:
    """As :func:`contents`, for one file."""
    check_regular(path)
    with opened(path) as (fd, size):
        file_format = detect(head(path, fd, size, HEAD_BYTES), path)
        if file_format == PT:
            from fastio.inspect.pt_contents import contents_of_pt

            return contents_of_pt(path, fd, size)
        if file_format is None:
            raise FormatError(
                f"{path}: its first bytes are of torch's legacy format, which has no directory, or of none; expected "
                f"{EXPECTED}; if torch.load opens it, save it again"
            )
        return _contents_of_plain(path, fd, size, file_format)


def _contents_of_plain(path: str, fd: int, size: int, file_format: str) -> Contents:
    """The contents of a safetensors or npy file, from the tensors that its module builds, on the device ``meta``."""
    regions: list[Region] = []

    def storage_of(region: Region) -> torch.UntypedStorage:
        regions.append(region)
        return torch.UntypedStorage(region.nbytes, device="meta")

    notes: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    if file_format == SAFETENSORS:
        metadata = tensor_table.read(path, fd, size).metadata or {}
        try:
            source = safetensors_format.source(path, fd, size, verify=True)
        except (ChecksumError, FormatError):  # what it holds can be listed all the same
            notes = ("its checksums cannot be used: fastio verify says why, and the cure",)
            source = safetensors_format.source(path, fd, size)
    else:
        source = formats.module(file_format).source(path, fd, size)
    try:
        built: Any = source.build(storage_of)
    except (RuntimeError, OverflowError, ValueError, TypeError) as error:  # torch's versions differ in which they raise
        said = shortened(str(error).partition("\n")[0])
        raise CorruptFileError(path, None, f"its shapes cannot be tensors: {said}") from None
    named: Iterable[tuple[str, torch.Tensor]] = built.items() if isinstance(built, dict) else [("array", built)]
    found = [
        StoredTensor(name, tensor.dtype, tuple(tensor.shape), tensor.stride(), path, region, 0)
        for (name, tensor), region in zip(named, regions, strict=True)
    ]
    found.sort(key=lambda tensor: tensor.offset)
    return Contents(path, file_format, size, tuple(found), metadata, {}, (), notes, (), source.checksummed, (path,))
