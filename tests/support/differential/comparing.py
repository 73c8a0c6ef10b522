"""Compares two objects in depth: types, values bit by bit, attributes, sharing and identity."""

from __future__ import annotations

import struct
import types
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy
import torch

from differential.classes import bytes_of

# Types whose objects are unique in the process, and are compared by identity.
_SINGLE = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme, type, types.FunctionType)
_SINGLE_TYPES = (*_SINGLE, types.BuiltinFunctionType, types.EllipsisType, types.NoneType)
_VALUES = (bool, int, str, bytes, range, slice, torch.device, numpy.dtype)


class DifferentError(Exception):
    """Two objects differ; the message says where and how."""


def difference(want: Any, got: Any, storages: bool = True) -> str | None:
    """The first difference, or None. Without ``storages``, only the elements that tensors show are compared."""
    return Comparison(storages).difference(want, got)


class Comparison:
    """A simultaneous walk over two objects. ``pairs`` are the visited storages of the expected and the other object."""

    def __init__(self, storages: bool = True) -> None:
        self._storages = storages
        self._there: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # ids of dead objects are reused
        self.pairs: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def difference(self, want: Any, got: Any) -> str | None:
        try:
            self.same("", want, got)
        except DifferentError as error:
            return str(error)
        return None

    def same(self, at: str, want: Any, got: Any) -> None:
        if type(want) is not type(got):
            raise DifferentError(f"{at or '.'}: type {_named(type(want))}, got {_named(type(got))}: {got!r:.200}")
        if isinstance(want, _SINGLE_TYPES):
            self._check(at, "object", want, got, want is got)
        elif isinstance(want, float):
            self._check(at, "value", want, got, struct.pack("d", want) == struct.pack("d", got))
        elif isinstance(want, complex):
            self.same(at, (want.real, want.imag), (got.real, got.imag))
        elif isinstance(want, _VALUES) or (type(want) is tuple and not want):
            self._check(at, "value", want, got, want == got)
        elif isinstance(want, torch.SymInt):
            return  # a ragged dimension has another name in each tensor
        elif self._is_new(at, "object", id(want), id(got)):
            self._alive += (want, got)
            self._contents(at, want, got)

    def _contents(self, at: str, want: Any, got: Any) -> None:
        if isinstance(want, torch.Tensor):
            self._tensors(at, want, got)
        elif isinstance(want, torch.UntypedStorage):
            self._same_storage(at, want, got)
        elif isinstance(want, torch.TypedStorage):
            self._check(at, "dtype", want.dtype, got.dtype)
            self._same_storage(at, want._untyped_storage, got._untyped_storage)
        elif isinstance(want, numpy.ndarray):
            for name in ("dtype", "shape", "strides"):
                self._check(at, name, getattr(want, name), getattr(got, name))
            whole = want.tolist() if want.dtype.hasobject else want.tobytes()
            self.same(f"{at}.tobytes()", whole, got.tolist() if want.dtype.hasobject else got.tobytes())
        elif isinstance(want, numpy.generic):
            self._check(at, "value", (want.dtype, want.tobytes()), (got.dtype, got.tobytes()))
        elif isinstance(want, torch.Generator):
            self._insides(f"{at}.get_state()", want.get_state(), got.get_state())
        elif isinstance(want, bytearray):
            self._check(at, "value", want, got, want == got)
        else:
            self._containers(at, want, got)

    def _containers(self, at: str, want: Any, got: Any) -> None:
        if isinstance(want, (list, tuple, deque)):
            self._check(at, "length", len(want), len(got))
            for number, pair in enumerate(zip(want, got, strict=True)):
                self.same(f"{at}[{number}]", *pair)
        elif isinstance(want, dict):
            ordered = not isinstance(want, Counter)
            self._check(at, "keys", list(map(repr, want)), list(map(repr, got)), None if ordered else want == got)
            for (key, one), other in zip(want.items(), got.values(), strict=True):
                self.same(f"{at}[{key!r}]", one, other)
        elif isinstance(want, (set, frozenset)):
            self._check(at, "members", want, got, want == got)
        elif not hasattr(want, "__dict__") and not hasattr(type(want), "__slots__"):
            self._check(at, "value", want, got, want == got)
        if isinstance(want, defaultdict):
            self.same(f"{at}.default_factory", want.default_factory, got.default_factory)
        if isinstance(want, deque):
            self.same(f"{at}.maxlen", want.maxlen, got.maxlen)
        for name in getattr(type(want), "__slots__", ()) if not isinstance(want, tuple) else ():
            if isinstance(want, OrderedDict):
                continue
            self.same(f"{at}.{name}", getattr(want, name, None), getattr(got, name, None))
        self._attributes(at, want, got)

    def _attributes(self, at: str, want: Any, got: Any) -> None:
        names, others = getattr(want, "__dict__", {}), getattr(got, "__dict__", {})
        self._check(at, "attributes", sorted(names), sorted(others))
        for name in names:
            self.same(f"{at}.{name}", names[name], others[name])

    def _tensors(self, at: str, want: torch.Tensor, got: torch.Tensor) -> None:
        names = ["dtype", "layout", "device", "requires_grad", "is_leaf", "is_quantized", "is_nested"]
        if not want.is_nested:
            names.append("shape")
        for name in names:
            self._check(at, name, getattr(want, name), getattr(got, name))
        for name in ("is_conj", "is_neg"):
            self._check(at, name, getattr(want, name)(), getattr(got, name)())
        self._attributes(at, want, got)
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            self._insides(at, want, got)

    def _insides(self, at: str, want: Any, got: Any) -> None:
        if hasattr(want, "__tensor_flatten__"):
            (names, context), (others, other_context) = want.__tensor_flatten__(), got.__tensor_flatten__()
            self._check(at, "inner tensors", names, others)
            self._check(at, "context", repr(context), repr(other_context))
            for name in names:
                self._tensors(f"{at}.{name}", getattr(want, name), getattr(got, name))
        elif want.is_nested:
            for name in ("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets"):
                self._insides(f"{at}.{name}()", getattr(want, name)(), getattr(got, name)())
            self._insides(f"{at}.values()", want.values(), got.values())
        elif want.layout == torch.strided:
            self._strided(at, want, got)
        elif want.device.type == "cpu":  # the simulated accelerator has no kernels for sparse tensors
            if want.layout == torch.sparse_coo:
                self._check(at, "is_coalesced", want.is_coalesced(), got.is_coalesced())
            for name in _PARTS[want.layout]:
                self._insides(f"{at}.{name}()", getattr(want, name)(), getattr(got, name)())

    def _strided(self, at: str, want: torch.Tensor, got: torch.Tensor) -> None:
        for name in ("stride", "storage_offset", "size"):
            self._check(at, name, getattr(want, name)(), getattr(got, name)())
        if want.is_quantized:
            self._check(at, "qscheme", want.qscheme(), got.qscheme())
            per_tensor = want.qscheme() == torch.per_tensor_affine
            for name in ("q_scale", "q_zero_point") if per_tensor else ("q_per_channel_axis",):
                self._check(at, name, getattr(want, name)(), getattr(got, name)())
            for name in () if per_tensor else ("q_per_channel_scales", "q_per_channel_zero_points"):
                self._insides(f"{at}.{name}()", getattr(want, name)(), getattr(got, name)())
        if want.device.type != "meta":
            self._same_storage(at, want.untyped_storage(), got.untyped_storage(), want, got)

    def _same_storage(self, at: str, want: Any, got: Any, *tensors: torch.Tensor) -> None:
        if not self._is_new(at, "storage", want._cdata, got._cdata):
            return
        if not self._storages and tensors:
            one, other = (tensor.resolve_conj().resolve_neg().contiguous() for tensor in tensors)
            want, got = one.untyped_storage(), other.untyped_storage()
        self._check(at, "bytes of its storage", want.nbytes(), got.nbytes())
        self._check(at, "device of its storage", want.device, got.device)
        if want.nbytes() == 0 or want.device.type == "meta":
            return
        self.pairs[want._cdata] = (want, got)
        one, other = bytes_of(want), bytes_of(got)
        if not torch.equal(one, other):
            wrong = (one != other).nonzero().flatten()
            zeros = int((other[wrong] == 0).sum())
            raise DifferentError(
                f"{at}: {len(wrong)} of {len(one)} bytes of its storage are wrong, from byte {int(wrong[0])} on; "
                f"{zeros} of these are zeros; there: {other[wrong[:8]].tolist()}, expected {one[wrong[:8]].tolist()}"
            )

    def _is_new(self, at: str, kind: str, want: int, got: int) -> bool:
        """Whether this pair is new. Raises DifferentError if one of the two was paired with another."""
        known, back = self._there.setdefault(want, got), self._back.setdefault(got, want)
        if known != got:
            raise DifferentError(f"{at}: its {kind} must be shared with an earlier one, got another")
        if back != want:
            raise DifferentError(f"{at}: its {kind} must not be shared, got one shared with an earlier one")
        fresh = want not in self._seen
        self._seen.add(want)
        return fresh

    def _check(self, at: str, what: str, want: Any, got: Any, same: bool | None = None) -> None:
        if not (want == got if same is None else same):
            raise DifferentError(f"{at or '.'}: {what} {want!r:.160}, got {got!r:.160}")


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
