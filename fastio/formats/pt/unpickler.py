"""``.pt``, reading: state dicts unpickled without Python between one opcode and the next.

``torch.load(weights_only=True)`` unpickles in Python, which for 10,000 tensors takes most of the time of a load. What
state dicts are made of (tensors, parameters, numbers, text, lists, tuples and dicts) is put together natively here, by
the same rules and from the same names, which are harmless whatever ``weights_only`` is. A pickle that holds anything
else is left to torch, from its beginning: both take the same storages, which the load owns.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from fastio import _native
from fastio.formats.pt.registered_packages import foreign_packages

_CPU = torch.device("cpu")


class _NotPlainError(Exception):
    """Only torch knows what to do with such a storage."""


def unpickle(
    data: bytes, map_location: Any, storage_of: Callable[[str, int], torch.UntypedStorage]
) -> tuple[Any] | None:
    """What a pickle holds, in a tuple; None if it is torch's to unpickle.

    ``storage_of`` gives the storage of a record (its name, and the number of bytes that it must have) on the CPU. What
    the tensors of a damaged file raise is what they raise in torch.
    """
    anywhere = map_location is not None  # else only what was saved on the CPU goes there
    if anywhere and not (isinstance(map_location, str | torch.device) and torch.device(map_location) == _CPU):
        return None
    if foreign_packages():
        return None
    made: dict[str, torch.TypedStorage] = {}

    def load(saved_id: tuple[Any, ...]) -> torch.TypedStorage:
        if len(saved_id) != 5 or saved_id[0] != "storage":
            raise _NotPlainError
        _, kind, key, location, numel = saved_id
        if key in made:
            return made[key]
        plain = type(key) is str and type(location) is str and type(numel) is int
        if not (plain and (location == "cpu" or anywhere)):
            raise _NotPlainError
        try:
            dtype = _dtype_of(kind)
        except TypeError:  # it is no storage type: a list, say, which has no hash
            raise _NotPlainError from None
        if dtype is None:
            raise _NotPlainError
        storage = storage_of(f"data/{key}", numel * _element_size(dtype))
        typed = torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        if storage.data_ptr() != 0:
            made[key] = typed
        return typed

    try:
        return _native.unpickle(data, _names(), _CALLS, load)
    except _NotPlainError:
        return None


def _rebuild_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
) -> torch.Tensor:
    """As ``torch._utils._rebuild_tensor_v2`` does, which asks each time whether tensors are fake."""
    tensor = torch.empty((0,), dtype=storage.dtype, device=_CPU).set_(storage._untyped_storage, offset, size, stride)
    tensor.requires_grad = requires_grad
    if metadata:
        _utils.set_tensor_metadata(tensor, metadata)
    tensor._backward_hooks = hooks
    return tensor


@functools.cache
def _dtype_of(kind: Any) -> torch.dtype | None:
    dtype = torch.uint8 if kind is torch.UntypedStorage else getattr(kind, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else None


_utils: Any = torch._utils
_element_size = functools.cache(_utils._element_size)
_CALLS: dict[Any, Callable[..., Any]] = {
    OrderedDict: OrderedDict,
    torch.Size: torch.Size,
    _utils._rebuild_tensor_v2: _rebuild_tensor,
    _utils._rebuild_parameter: _utils._rebuild_parameter,
}


@functools.cache
def _names() -> dict[bytes, Any]:
    """What globals stand for: of those that torch allows, the ones that are called here, storages and dtypes."""
    from torch import _weights_only_unpickler

    allowed: dict[str, Any] = _weights_only_unpickler._get_allowed_globals()
    found = {}
    for path, what in allowed.items():
        module, _, name = path.rpartition(".")
        known = what in _CALLS if callable(what) else isinstance(what, torch.dtype) or hasattr(what, "dtype")
        if known or what is torch.UntypedStorage:
            found[f"{module}\n{name}".encode()] = what
    return found
