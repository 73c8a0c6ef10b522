"""Unpickles state dicts to where their tensors lie in the file, without making a tensor."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fastio._native import unpickle as native_unpickle
from fastio.formats.pt.registered_packages import foreign_packages
from fastio.formats.pt.unpickler import CALLS, OtherPickleError, allowed_globals, parsed_identity
from fastio.formats.safetensors.dtypes import name_of
from fastio.formats.safetensors.entries import Entry
from fastio.memory.load_buffers import Region

_utils: Any = torch._utils


def unpickle(data: bytes, record_of: Callable[[str], Region | None], checksummed: bool) -> tuple[Any, int] | None:
    """Return the pickled object with an :class:`Entry` in the place of each tensor, and the bytes behind the pickle.

    No tensor is made. None if the object has to be unpickled over memory, also to get the error of a tensor that does
    not fit its record. ``record_of`` returns a record of the file by its name. With ``checksummed`` a tensor that is
    all of its record has the record's CRC-32.
    """
    if foreign_packages():
        return None
    loaded: dict[str, _StoredStorage] = {}
    geometries: dict[Any, _Geometry] = {}

    def load(saved_id: tuple[Any, ...]) -> _StoredStorage:
        key, dtype, _, nbytes = parsed_identity(saved_id)
        found = loaded.get(key)
        if found is None:
            record = record_of(f"data/{key}")
            if record is None or record.nbytes != nbytes:
                raise OtherPickleError
            found = loaded[key] = _StoredStorage((dtype, record))
        return found

    def rebuild(
        storage: Any, first: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
    ) -> Entry:
        if type(storage) is not _StoredStorage:
            raise OtherPickleError
        dtype, record = storage
        geometry = geometries.get((dtype, size, stride))
        if geometry is None:
            geometry = geometries[dtype, size, stride] = _geometry(dtype, size, stride)
        name, nbytes, strides = geometry
        if metadata or type(first) is not int or first < 0 or not _is_allowed(dtype, requires_grad, hooks):
            raise OtherPickleError
        shape = list(size)
        if not nbytes:
            return Entry(dtype, shape, 0, 0, name, shape)
        begin = first * dtype.itemsize
        if begin + nbytes > record.nbytes:
            raise OtherPickleError
        crc = record.crc if checksummed and nbytes == record.nbytes else None
        return Entry(dtype, shape, record.offset + begin, nbytes, name, shape, strides, crc)

    def rebuild_parameter(data: Any, requires_grad: Any, hooks: Any) -> Entry:
        if type(data) is not Entry or not _is_allowed(data.dtype, requires_grad, hooks):
            raise OtherPickleError
        return data

    calls: dict[Any, Callable[..., Any]] = {
        **CALLS,
        _utils._rebuild_tensor_v2: rebuild,
        _utils._rebuild_parameter: rebuild_parameter,
    }
    try:
        return native_unpickle(data, allowed_globals(), calls, load)
    except (OtherPickleError, TypeError, ValueError):
        return None


class _StoredStorage(tuple[torch.dtype, Region]):
    """A storage that stays in the file."""


def _is_allowed(dtype: torch.dtype, requires_grad: Any, hooks: Any) -> bool:
    """Whether torch makes a tensor with these attributes."""
    if type(hooks) is not OrderedDict:
        return False
    return requires_grad is False or (requires_grad is True and (dtype.is_floating_point or dtype.is_complex))


class _Geometry(NamedTuple):
    """The format's name of a dtype, the bytes that a tensor spans, and its strides unless it is contiguous."""

    dtype: str
    nbytes: int
    stride: list[int] | None


def _geometry(dtype: torch.dtype, size: Any, stride: Any) -> _Geometry:
    if len(size) != len(stride) or any(type(number) is not int or number < 0 for number in (*size, *stride)):
        raise OtherPickleError
    is_contiguous, step, last = True, 1, 0
    for length, between in zip(reversed(size), reversed(stride), strict=True):
        is_contiguous = is_contiguous and (length == 1 or between == step)
        step *= length
        last += (length - 1) * between
    is_contiguous = is_contiguous or not step
    count = step if is_contiguous else last + 1
    return _Geometry(name_of(dtype), count * dtype.itemsize, None if is_contiguous else list(stride))
