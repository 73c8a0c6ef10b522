"""Unpickles state dicts in native code.

``torch.load(weights_only=True)`` unpickles in Python, which takes most of the time of loading 10,000 tensors. The
native unpickler handles tensors, parameters, numbers, text, lists, tuples and dicts. It follows the same rules and
allows the same globals, which are harmless whatever ``weights_only`` is. A pickle that holds anything else is left to
torch from its beginning: both unpicklers use the same storages, which the load owns.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from fastio._native import unpickle as native_unpickle
from fastio.formats.pt.registered_packages import foreign_packages

_CPU = torch.device("cpu")


class OtherPickleError(Exception):
    """The pickle holds what the native unpickler leaves to torch."""


def unpickle(
    data: bytes, map_location: Any, storage_of: Callable[[str, int], torch.UntypedStorage]
) -> tuple[Any, int] | None:
    """Return the pickled object, and the bytes behind the pickle; None if torch must unpickle it.

    ``storage_of`` returns the storage of a record (its name, the number of bytes it must have) on the CPU. The tensors
    of a damaged file raise the same errors as in torch.
    """
    maps_all_to_cpu = map_location is not None  # otherwise only storages saved on the CPU are loaded there
    if maps_all_to_cpu and not (isinstance(map_location, str | torch.device) and torch.device(map_location) == _CPU):
        return None
    if foreign_packages():
        return None
    loaded: dict[str, torch.TypedStorage] = {}

    def load(saved_id: tuple[Any, ...]) -> torch.TypedStorage:
        key, dtype, location, nbytes = parsed_identity(saved_id)
        if key in loaded:
            return loaded[key]
        if location != "cpu" and not maps_all_to_cpu:
            raise OtherPickleError
        typed = torch.TypedStorage(wrap_storage=storage_of(f"data/{key}", nbytes), dtype=dtype, _internal=True)
        if typed._untyped_storage.data_ptr() != 0:
            loaded[key] = typed
        return typed

    try:
        return native_unpickle(data, allowed_globals(), CALLS, load)
    except OtherPickleError:
        return None


def _rebuild_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
) -> torch.Tensor:
    """Do what ``torch._utils._rebuild_tensor_v2`` does, without its check for fake tensors on each call."""
    tensor = torch.empty((0,), dtype=storage.dtype, device=_CPU).set_(storage._untyped_storage, offset, size, stride)
    tensor.requires_grad = requires_grad
    if metadata:
        _utils.set_tensor_metadata(tensor, metadata)
    tensor._backward_hooks = hooks
    return tensor


def parsed_identity(saved_id: tuple[Any, ...]) -> tuple[str, torch.dtype, str, int]:
    """The key, dtype, location and bytes of a storage, by its persistent id."""
    if len(saved_id) != 5 or saved_id[0] != "storage":
        raise OtherPickleError
    _, kind, key, location, numel = saved_id
    if type(key) is not str or type(location) is not str or type(numel) is not int:
        raise OtherPickleError
    try:
        dtype = _dtype_of(kind)
    except TypeError:  # not a storage type, but an unhashable object such as a list
        raise OtherPickleError from None
    if dtype is None:
        raise OtherPickleError
    return key, dtype, location, numel * _element_size(dtype)


@functools.cache
def _dtype_of(kind: Any) -> torch.dtype | None:
    dtype = torch.uint8 if kind is torch.UntypedStorage else getattr(kind, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else None


_utils: Any = torch._utils
_element_size = functools.cache(_utils._element_size)
CALLS: dict[Any, Callable[..., Any]] = {
    OrderedDict: OrderedDict,
    torch.Size: torch.Size,
    _utils._rebuild_tensor_v2: _rebuild_tensor,
    _utils._rebuild_parameter: _utils._rebuild_parameter,
}


@functools.cache
def allowed_globals() -> dict[bytes, Any]:
    """Return the globals by their pickled names: the functions in CALLS, storages and dtypes that torch allows."""
    from torch import _weights_only_unpickler

    allowed: dict[str, Any] = _weights_only_unpickler._get_allowed_globals()
    found = {}
    for path, value in allowed.items():
        module, _, name = path.rpartition(".")
        known = value in CALLS if callable(value) else isinstance(value, torch.dtype) or hasattr(value, "dtype")
        if known or value is torch.UntypedStorage:
            found[f"{module}\n{name}".encode()] = value
    return found
