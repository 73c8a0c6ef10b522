"""What a file, or a folder of shards, holds: tensors, where they lie, what they share, metadata."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

import torch

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
