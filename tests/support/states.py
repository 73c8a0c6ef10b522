"""State dicts with every kind of object that torch.save supports; their values depend on a seed."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

Make = Callable[[int], Any]
"""Makes a state from a seed."""


class Pair(NamedTuple):
    step: int
    tensor: torch.Tensor


Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Settings:
    rate: float
    tensor: torch.Tensor
    names: list[str]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Config(dict[str, Any]):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


class Slotted(list[Any]):
    __slots__ = ("note",)


class Growing(defaultdict[str, Any]):
    """A defaultdict that adds a key for every attribute that is read."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(Growing, *arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


class Answering:
    """An object that has every attribute."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: None


class Looking:
    """An object that reads its tensor's values while it is unpickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.total = float(tensor.sum())

    def __setstate__(self, state: dict[str, Any]) -> None:
        assert float(state["tensor"].sum()) == state["total"], "the tensor was not read yet"
        self.__dict__.update(state)


class Tagged(torch.Tensor):
    pass


def ramp(seed: int, *shape: int) -> torch.Tensor:
    """A float32 tensor; tensors of different seeds share no value."""
    size = torch.Size(shape).numel()
    return (torch.arange(size, dtype=torch.float32) + seed * size + 1).reshape(shape)


def with_attribute(thing: Any, seed: int) -> Any:
    thing.scale = ramp(seed, 1000)
    return thing


def loop(seed: int) -> dict[str, Any]:
    there: list[Any] = [seed, ramp(seed, 3)]
    within = (there, "tuple")
    there += [there, within]
    state: dict[str, Any] = {"loop": there, "within": within}
    state["state"] = state
    return state


def shared(seed: int) -> dict[str, Any]:
    base = ramp(seed, 40, 30)
    part = [base[3], base[:, 2]]
    plain = [seed, {"deep": (seed,)}]
    return {"base": base, "again": base, "views": [base[3:9], base.t(), base[::2, ::3]], "part": part, "other": part,
            "plain": plain, "also": {"plain": plain, "deep": plain[1]}}  # fmt: skip


def slotted(seed: int) -> Slotted:
    made = Slotted([ramp(seed, 3)])
    made.note = [seed]
    return made


STATES: dict[str, Make] = {
    "nested": lambda seed: {"a": [(ramp(seed, 3), {"b": seed, 3: None}), 1.5, "text", b"bytes", 2**70, True, 1j]},
    "shared": shared,
    "cycle": loop,
    "a list alone": lambda seed: [ramp(seed, 3), seed],
    "a tensor alone": lambda seed: ramp(seed, 3),
    "empty": lambda seed: {"a": torch.empty(0), "b": torch.empty(3, 0), "c": [], "d": {}, "e": ()},
    "attributes of a parameter": lambda seed: {"w": with_attribute(nn.Parameter(ramp(seed, 2)), seed)},
    "attributes of a tensor": lambda seed: {"t": with_attribute(ramp(seed, 2), seed)},
    "attributes of a dict": lambda seed: {"o": with_attribute(OrderedDict(a=ramp(seed, 2)), seed)},
    "ordered, counted": lambda seed: {"o": OrderedDict(z=seed, a=ramp(seed, 2)), "c": Counter(a=seed, b=2)},
    "moved to the end": lambda seed: moved(OrderedDict(z=ramp(seed, 2), a=ramp(seed, 3))),
    "default dict": lambda seed: {"d": defaultdict(list, a=[ramp(seed, 3)]), "n": defaultdict(None, a=seed)},
    "sets": lambda seed: {"s": {seed, 2}, "f": frozenset([seed, 5])},
    "named tuples": lambda seed: {"p": Pair(seed, ramp(seed, 3)), "q": Point(seed, [Point(1, 2)])},
    "a dataclass": lambda seed: {"d": Settings(0.5, ramp(seed, 3), [str(seed)]), "e": Colour(seed % 2 + 1)},
    "a dict with attributes for keys": lambda seed: {"cfg": Config(lr=seed, tensor=ramp(seed, 3))},
    "a dict that grows": lambda seed: {"g": Growing({"lr": seed, "t": ramp(seed, 3)})},
    "an object that answers to all": lambda seed: {"a": Answering(ramp(seed, 3))},
    "an object that looks": lambda seed: {"m": ramp(seed, 5), "a": Looking(ramp(seed, 3))},
    "a list with slots": lambda seed: {"l": slotted(seed)},
    "parameters": lambda seed: {"w": nn.Parameter(ramp(seed, 2)), "f": nn.Parameter(ramp(seed, 2), False)},
    "gradients": lambda seed: {"r": ramp(seed, 2).requires_grad_()},
    "bits": lambda seed: {"c": torch.complex(ramp(seed, 3), ramp(seed, 3)).conj(), "n": torch.tensor([float("nan")])},
    "strides": lambda seed: {
        "l": ramp(seed, 2, 3, 4, 5).to(memory_format=torch.channels_last),
        "t": ramp(seed, 3, 4).t(),
    },
    "rows that are one": lambda seed: {"e": ramp(seed, 3, 1).expand(3, 4)},
    "sparse": lambda seed: {"coo": ramp(seed, 3, 3).to_sparse(), "csr": ramp(seed, 3, 3).to_sparse_csr()},
    "quantized": lambda seed: {"q": torch.quantize_per_tensor(ramp(seed, 8), 0.5, 3, torch.qint8)},
    "float8": lambda seed: {"f": ramp(seed, 8).to(torch.float8_e5m2)},
    "a subclass": lambda seed: {"t": ramp(seed, 3).as_subclass(Tagged)},
    "a wrapper": lambda seed: {"t": TwoTensor(ramp(seed, 3), -ramp(seed, 3))},
    "numpy": lambda seed: {"a": np.arange(5) + seed, "s": np.float64(seed)},
}


def moved(one: OrderedDict[str, Any]) -> OrderedDict[str, Any]:
    one.move_to_end("z")
    return one
