"""Classes and functions of the generated objects. Pickles name them, so they must be importable."""

from __future__ import annotations

import enum
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Point:
    x: Any
    y: Any = None


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Plain:
    """An object with attributes only."""


class Slotted:
    __slots__ = ("value",)


class Watching:
    """Reads its tensor's values while it is unpickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.seen = checksum(tensor)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.seen = checksum(self.tensor)


class BytesOf:
    """Is unpickled as a bytearray of its tensor's values, which ``weights_only=True`` allows."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        return bytearray, (self.tensor,)


class ChecksumOf:
    """Is unpickled as the checksum of its tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        return checksum, (self.tensor,)


class Tagged(torch.Tensor):
    """A subclass of Tensor."""


class OwnParameter(torch.nn.Parameter):
    """A subclass of Parameter."""


class OwnList(list[Any]):
    """A subclass of list."""


class OwnDict(OrderedDict[Any, Any]):
    """A subclass of OrderedDict."""


class Net(torch.nn.Module):
    """A module with parameters, buffers, and a tied weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.tied = torch.nn.Linear(width, width, bias=False)
        self.tied.weight = self.inner.weight
        self.register_buffer("mask", torch.ones(width, dtype=torch.bool))
        self.register_buffer("temporary", torch.ones(1), persistent=False)
        if hasattr(torch.nn, "Buffer"):  # torch has it since 2.5
            self.own = torch.nn.Buffer(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.norm(self.inner(x)))  # type: ignore[no-any-return]


def checksum(of: Any) -> int:
    """The CRC-32 of a storage, or of a tensor's storage."""
    storage = of.untyped_storage() if isinstance(of, torch.Tensor) else getattr(of, "_untyped_storage", of)
    data: Any = bytes_of(storage).numpy()
    return zlib.crc32(data)


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage as a uint8 tensor over the same memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


# The classes that examples allow for weights_only=True.
SAFE: list[Any] = [Pair, Point, Plain, Slotted, Watching, checksum, Tagged, OwnParameter, OwnDict, Colour]
