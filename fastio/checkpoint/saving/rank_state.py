"""A rank's part of a state: tensors under the names that torch.distributed.checkpoint gives them, and objects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from fastio.checkpoint.saving.plain_entries import Path
from fastio.checkpoint.saving.snapshot import Storage
from fastio.distributed.stored_items import contiguous

_Crcs = TypeVar("_Crcs")  # of a storage, or of its blocks


class Sharding(NamedTuple):
    """The tensor of all ranks that a rank has a part of."""

    mesh: DeviceMesh
    placements: Sequence[Placement]
    shape: torch.Size
    stride: tuple[int, ...]


class LocalTensor(NamedTuple):
    """This rank's part of a tensor: a view of a storage, and the tensor of all ranks that it is a part of, if any."""

    storage: int
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    of: Sharding | None

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return it over a storage, its own one or a copy."""
        tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
        return tensor.set_(storage, self.offset, self.shape, self.stride)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def is_whole(self, nbytes: int) -> bool:
        """Whether it has the bytes of a storage of so many, in their order."""
        if self.offset or math.prod(self.shape) * self.dtype.itemsize != nbytes:
            return False
        steps = zip(self.shape, self.stride, contiguous(self.shape), strict=True)
        return not nbytes or all(length == 1 or step == packed for length, step, packed in steps)

    def described(self) -> torch.Tensor:
        """Return a tensor without data, from which DCP's planner takes shapes and placements."""
        part = torch.empty(self.shape, dtype=self.dtype, device="meta")
        whole = self.of
        if whole is None:
            return part
        return DTensor.from_local(
            part, whole.mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride
        )


class RankState(NamedTuple):
    """A rank's part of a state; ``storages`` hold its ``tensors``, ``objects`` are pickled already.

    ``paths`` has the keys that lead to each name in the tree.
    """

    tensors: Mapping[str, LocalTensor]
    storages: Sequence[Storage]
    objects: Mapping[str, bytearray]  # torch warns of memory that is not writable
    paths: Mapping[str, Path]
    tree: bytes
    image: None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the storages."""
        return sum(nbytes for _, _, nbytes in self.storages)

    def over(self, storages: Sequence[Storage]) -> RankState:
        """Return it with other storages of the same contents."""
        return self._replace(storages=storages)

    def tensor(self, name: str) -> torch.Tensor:
        """Return this rank's part of a tensor."""
        local = self.tensors[name]
        return local.over(self.storages[local.storage][1])

    def by_tensor(self, crcs: Mapping[str, _Crcs]) -> dict[str, _Crcs]:
        """Return the CRC-32s of parts that fill their storages, by tensor, of those of the storages."""
        found = {}
        for name, local in self.tensors.items():
            storage, _, nbytes = self.storages[local.storage]
            if storage in crcs and local.is_whole(nbytes):
                found[name] = crcs[storage]
        return found
