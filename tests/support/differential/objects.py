"""Makes objects: trees of containers over tensors, shared and cyclic, small ones and large ones."""

from __future__ import annotations

import argparse
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy
import torch

from differential import classes, tensors

MIB = 1 << 20


class Maker:
    """Makes one object.

    ``wild`` adds objects that ``weights_only=True`` refuses. ``medium``: some tensors have 64 KiB and more.
    ``stateful`` adds modules and generators, whose states a Checkpointer saves.
    """

    def __init__(self, rng: random.Random, wild: bool, medium: bool, stateful: bool = True) -> None:
        self.rng, self.wild, self.medium, self.stateful = rng, wild, medium, stateful
        self._made: list[torch.Tensor] = []
        self._containers: list[Any] = []

    def tensor(self) -> torch.Tensor:
        rng = self.rng
        draw = rng.random()
        if self._made and draw < 0.12:
            return rng.choice(self._made)
        if draw < 0.3:
            strided = [one for one in self._made if type(one) is torch.Tensor and tensors.has_views(one)]
            base = rng.choice(strided) if strided and rng.random() < 0.5 else tensors.plain(rng, self.medium)
            try:
                made = tensors.view_of(rng, base)
            except RuntimeError:  # some tensors do not support some views
                made = base
            self._made += [base]
        elif draw < 0.65:
            made = tensors.plain(rng, self.medium)
        elif draw < 0.8:
            made = tensors.parameter(rng, self.medium)
        else:
            kinds = [tensors.odd_bits, tensors.quantized, tensors.sparse, tensors.meta, tensors.nested]
            made = rng.choice([*kinds, tensors.subclass] if self.wild else kinds)(rng)
        self._made.append(made)
        return made

    def value(self) -> Any:
        """A leaf that is not a tensor."""
        rng = self.rng
        tame = [
            *(None, True, 0, -1, 2**40, -(2**70), 1.5, float("nan"), float("-inf"), 1 + 2j, "", "text", "ü\ud800"),
            *(b"", b"bytes", bytearray(b"more"), torch.float32, torch.device("cpu"), torch.device("cuda:1")),
            *(torch.strided, torch.Size([2, 3]), torch.Size([])),
        ]
        if not self.wild or rng.random() < 0.5:
            return rng.choice(tame)
        made: Any = rng.choice(
            [
                *(classes.Colour.RED, classes.Level.HIGH, range(3), slice(1, None), Ellipsis, torch.relu, int),
                *(torch.channels_last, torch.per_tensor_affine, numpy.float32(1.5), numpy.int64(3), numpy.bool_(True)),
                *(numpy.arange(6, dtype=numpy.int16).reshape(2, 3), numpy.array([1, None], dtype=object)),
                *(numpy.asfortranarray(numpy.ones((2, 3))), numpy.array("text"), numpy.dtype("float32")),
                *([torch.Generator().manual_seed(rng.randrange(99))] if self.stateful else []),
            ]
        )
        return made

    def odd(self) -> Any:
        """An object for which a loader must wait for data, or which it must leave to torch."""
        rng = self.rng
        tensor = tensors.filled(rng, (rng.randrange(1, 3000),), torch.uint8)
        makers: list[Any] = [
            lambda: classes.BytesOf(tensor[: rng.randrange(1, 200)].clone()),
            lambda: tensors.filled(rng, (64,), tensors.any_dtype(rng)),
            lambda: tensors.sparse(rng),
            lambda: _state(rng),
        ]
        if self.wild:
            makers += [
                lambda: classes.Watching(tensor),
                lambda: classes.ChecksumOf(tensor),
                tensor.untyped_storage,
                lambda: lambda: None,  # cannot be pickled
            ]
        if self.wild and self.stateful:
            makers.append(lambda: classes.Net(rng.randrange(1, 4)))
        return rng.choice(makers)()

    def tree(self, depth: int) -> Any:
        rng = self.rng
        draw = rng.random()
        if depth == 0 or draw < 0.3:
            return self.tensor() if rng.random() < 0.65 else self.value() if rng.random() < 0.85 else self.odd()
        if self._containers and draw < 0.38:
            return rng.choice(self._containers)  # shared, or a cycle
        return self._container(depth)

    def _container(self, depth: int) -> Any:
        rng = self.rng
        count = rng.randrange(5)
        kind = rng.randrange(18 if self.wild else 9)
        if kind < 6:
            made: Any = [{}, {}, {}, [], OrderedDict(), defaultdict(list) if self.wild else {}][kind]
            self._containers.append(made)
            return self._put(made, count, depth)
        if kind == 6:
            return tuple(self.tree(depth - 1) for _ in range(count))
        if kind == 7:
            return {rng.choice([1, "a", 2.5, None, (1, 2), b"k"]) for _ in range(count)}
        if kind == 8:
            return Counter({f"k{i}": i for i in range(count)})
        if kind < 13:
            made = [argparse.Namespace, types.SimpleNamespace, classes.Plain, classes.Plain][kind - 9]()
            self._containers.append(made)
            vars(made).update({f"a{number}": self.tree(depth - 1) for number in range(count)})
            return made
        if kind == 13:
            return classes.Pair(self.tree(depth - 1), self.tree(depth - 1))
        if kind == 14:
            return classes.Point(self.tree(depth - 1), self.tree(depth - 1))
        if kind == 15:
            made = classes.Slotted()
            made.value = self.tree(depth - 1)
            return made
        if kind == 16:
            return deque([self.tree(depth - 1) for _ in range(count)], maxlen=7)
        made = rng.choice([classes.OwnList, classes.OwnDict])()
        return self._put(made, count, depth)

    def _put(self, made: Any, count: int, depth: int) -> Any:
        for number in range(count):
            if isinstance(made, list):
                made.append(self.tree(depth - 1))
            else:
                key = f"k{number}" if self.rng.random() < 0.8 else self.rng.choice([number, (1, "a"), 2.5, None, True])
                made[key] = self.tree(depth - 1)
        if type(made) is OrderedDict and self.rng.random() < 0.4:
            made._metadata = {"version": 1}  # type: ignore[attr-defined]
            made.scale = self.tree(0)  # type: ignore[attr-defined]
        return made


def _state(rng: random.Random) -> Any:
    """The state dicts of a training: of a module, an optimizer and a scheduler, or one of them."""
    net, optimizer = trained(rng, rng.randrange(1, 4))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    found = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    return found[rng.choice(list(found))] if rng.random() < 0.5 else found


def trained(rng: random.Random, width: int) -> tuple[classes.Net, torch.optim.Optimizer]:
    """A module and its optimizer with an artificial state: a real step would import torch's compiler."""
    net = classes.Net(width)
    for parameter in net.parameters():
        parameter.data = tensors.filled(rng, tuple(parameter.shape), torch.float32).nan_to_num(1.0)
    kind = rng.choice([torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
    optimizer: torch.optim.Optimizer = kind(net.parameters(), lr=0.1)
    for parameter in net.parameters() if kind is not torch.optim.SGD else ():
        moments = {name: torch.full_like(parameter, 0.5) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(float(rng.randrange(99))), **moments}
    return net, optimizer


def small(rng: random.Random, stateful: bool = True) -> Any:
    """A tree of a few tensors, of some KiB, sometimes some MiB; see :class:`Maker`."""
    maker = Maker(rng, wild=rng.random() < 0.45, medium=rng.random() < 0.2, stateful=stateful)
    if rng.random() < 0.1:
        return maker.tree(0)
    if rng.random() < 0.25:  # like published checkpoints: weights first, then the rest
        made: dict[str, Any] = {f"w{i}": maker.tensor() for i in range(rng.randrange(1, 12))}
        maker.wild = True
        made["rest"] = maker.tree(1)
        return made
    return maker._container(rng.randrange(1, 4))


def large(rng: random.Random) -> Any:
    """Up to thousands of small tensors around a few large ones, 17 to 64 MiB in all, and unusual objects.

    Reads of that size run on a thread of their own during unpickling. Half of the objects are even: like a state dict
    except for the last value, so a loader learns only there that it must wait.
    """
    maker = Maker(rng, wild=rng.random() < 0.6, medium=False)
    total = rng.choice([17, 20, 24, 33, 40] if rng.random() < 0.95 else [64]) * MIB
    even, dtype = rng.random() < 0.5, rng.choice(tensors.COMMON)
    parts: list[Any] = []
    while total > 0:
        nbytes = min(total, rng.choice([1, 2, 4, 8, 16, 17]) * MIB + rng.randrange(-64, 64) * 8)
        parts.append(tensors.filled(rng, (max(1, nbytes // dtype.itemsize),), dtype))
        total -= nbytes
    for _ in range(rng.choice([0, 30, 100, 300, 1000, 3000])):
        one = dtype if even or rng.random() < 0.99 else tensors.any_dtype(rng)
        parts.append(tensors.filled(rng, (rng.randrange(1, 40),), one))
    parts += [] if even else [maker.tree(1) for _ in range(rng.randrange(6))]
    rng.shuffle(parts)
    last: list[Any] = [
        maker.odd,
        maker.tensor,
        maker.value,
        lambda: argparse.Namespace(lr=0.1),
        lambda: tensors.plain(rng),
    ]
    if even or rng.random() < 0.5:
        parts.append(rng.choice(last)())
    made: dict[str, Any] = {f"k{number}": part for number, part in enumerate(parts)}
    return {"model": made, "step": 3, "last": maker.tree(1)} if rng.random() < 0.5 else made
