"""Operators that ran in a forward pass, with what is needed to run them again. They hold no activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fastio._native import WeakStorage
from fastio.offload.autograd.hooks import is_exchanged, is_offloadable, is_parameter
from fastio.offload.autograd.version_counters import counter_of
from fastio.offload.autograd.views import View
from fastio.offload.recompute.numerics import Numerics, current
from fastio.offload.recompute.operators import UNSAFE_VIEW, tensors_in

SMALL = 4096  # bytes: smaller arguments are held as they are

_VERSIONS = torch._C.DispatchKey.ADInplaceOrView

Key = tuple[int, int, int]
"""Storage, version counter and version of a tensor: see :meth:`ForwardPass.saved_tensor_of`."""


class Constant(NamedTuple):
    """An argument that is held: a parameter or another leaf, or a small tensor."""

    tensor: torch.Tensor
    version: int
    storage: WeakStorage  # that the operator read: ``tensor.data = new`` gives it another
    storage_nbytes: int

    @property
    def is_unchanged(self) -> bool:
        """Whether it has the bytes that the operator read, as far as its version and its storage tell."""
        storage = self.tensor.untyped_storage()
        same = self.tensor._version == self.version and storage._cdata == self.storage.cdata
        return same and storage.nbytes() == self.storage_nbytes

    @property
    def key(self) -> Key:
        """What identifies the bytes that the operator read."""
        return self.storage.cdata, counter_of(self.tensor), self.version


class Activation(NamedTuple):
    """An argument that is not held: the bytes that another operator made, or that autograd saved."""

    key: Key
    view: View
    storage_nbytes: int


@dataclass(frozen=True, slots=True)
class Made:
    """One output of an operator: all of a storage, which no other output has."""

    storage: WeakStorage  # so that no other storage gets its _cdata
    key: Key
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    nbytes: int  # of the storage


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An operator that ran. Tensors among ``args`` and ``kwargs`` are Constants and Activations."""

    func: Any
    number: int  # of its calls in the forward pass
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Made | None, ...]  # None: not a tensor, or not one that can be recomputed
    numerics: Numerics | None  # None: it cannot run again with the same bits

    def arguments(self) -> list[Constant | Activation]:
        """Return what its tensors are."""
        found: list[Constant | Activation] = []
        for argument in (*self.args, *self.kwargs.values()):
            for one in argument if type(argument) is list else (argument,):
                if isinstance(one, (Constant, Activation)):
                    found.append(one)
        return found


def note(func: Any, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, repeatable: bool) -> Call:
    """Return the record of an operator that ran. Call it where the operator was dispatched."""
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    made = [_made(one) for one in outputs]
    given = [*args, *kwargs.values()]
    if not repeatable or not is_plain(given) or any(map(_is_exchanged, given)):
        return Call(func, number, (), {}, tuple(made), None)
    inputs: set[int] = set()
    noted = tuple([_noted(one, inputs) for one in args])
    named = {name: _noted(one, inputs) for name, one in kwargs.items()}
    seen = [one.key[0] for one in made if one is not None]
    shared = len(set(seen)) < len(seen) or not inputs.isdisjoint(seen)
    if shared and func is not UNSAFE_VIEW:  # it returned an argument
        return Call(func, number, (), {}, tuple(None for _ in made), None)
    return Call(func, number, noted, named, tuple(made), current())


def is_plain(argument: Any) -> bool:
    """Return whether all tensors that an argument is or lists are plain ones with memory that is known here."""
    if isinstance(argument, torch.Tensor):
        return isinstance(argument, torch.nn.Parameter) or is_offloadable(argument)
    return all(map(is_plain, argument)) if isinstance(argument, (list, tuple)) else True


def _is_exchanged(argument: Any) -> bool:
    return any(is_exchanged(one.untyped_storage()) for one in tensors_in(argument))


def key_of(tensor: torch.Tensor) -> Key:
    """Return what identifies the bytes of a tensor."""
    return tensor.untyped_storage()._cdata, counter_of(tensor), tensor._version


def _made(out: Any) -> Made | None:
    if not isinstance(out, torch.Tensor) or not is_offloadable(out):
        return None
    storage = out.untyped_storage()
    if out.storage_offset() or out.is_conj() or out.is_neg():
        return None
    return Made(WeakStorage(storage), key_of(out), out.dtype, out.shape, out.stride(), storage.nbytes())


def _noted(argument: Any, inputs: set[int]) -> Any:
    if isinstance(argument, torch.Tensor):
        return _noted_tensor(argument, inputs)
    if isinstance(argument, (list, tuple)):
        return [_noted(one, inputs) for one in argument]
    return argument


def _noted_tensor(tensor: torch.Tensor, inputs: set[int]) -> Constant | Activation:
    storage = tensor.untyped_storage()
    inputs.add(storage._cdata)
    nbytes = storage.nbytes()
    if (tensor.is_leaf and tensor.requires_grad) or is_parameter(tensor):  # the graph holds them anyway
        return Constant(tensor, tensor._version, WeakStorage(storage), nbytes)
    if nbytes >= SMALL:
        return Activation(key_of(tensor), View.of(tensor), nbytes)
    if tensor.requires_grad or tensor.dim():  # a number may be a Python number, which a detached one is not
        tensor = _detached(tensor)  # without its node, which would keep the graph alive; ``.data =`` does not reach it
    return Constant(tensor, tensor._version, WeakStorage(storage), nbytes)


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    """Detach a tensor below autograd, where by itself the result has a version of its own."""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_VERSIONS)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_VERSIONS, False)
    try:
        return tensor.detach()
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_VERSIONS, excluded)
