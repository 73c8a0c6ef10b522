"""Which pickles only put storages together, so that they may be unpickled while the storages are still being filled.

Whatever a pickle calls beyond torch's own rebuilding may look at what a tensor holds: a class's ``__setstate__``,
torch's check of a sparse tensor's indices, a random number generator's state. So names that are not known to look at
nothing are taken to look.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from fastio import _native

_serialization: Any = torch.serialization

_BLIND: dict[bytes, set[bytes]] = {
    b"torch": {b"Tensor", b"Size", b"device"},
    b"torch._tensor": {b"_rebuild_from_type_v2"},
    b"torch._utils": {
        b"_rebuild_tensor",
        b"_rebuild_tensor_v2",
        b"_rebuild_tensor_v3",
        b"_rebuild_parameter",
        b"_rebuild_parameter_with_state",
    },
    b"torch.nn.parameter": {b"Parameter"},
    b"torch.serialization": {b"_get_layout"},
    b"torch.storage": {b"TypedStorage", b"UntypedStorage"},
    b"__builtin__": {b"set", b"complex", b"bytearray"},
    b"_codecs": {b"encode"},
    b"collections": {b"OrderedDict", b"Counter", b"defaultdict"},
    # An array's bytes stand in the pickle itself.
    b"numpy": {b"ndarray", b"dtype"},
    b"numpy.core.multiarray": {b"_reconstruct", b"scalar"},
    b"numpy._core.multiarray": {b"_reconstruct", b"scalar"},
}
_BLIND[b"builtins"] = _BLIND[b"__builtin__"]


def looks_at_values(data: bytes) -> bool:
    """Whether unpickling may ask what a tensor holds."""
    names = _native.pickle_names(data)
    return names is None or not all(is_blind(module, name) for module, name in names)


def is_blind(module: bytes, name: bytes) -> bool:
    """Whether what a pickle names so looks at no tensor's values."""
    if name in _BLIND.get(module, ()):
        return True
    known = getattr(torch, name.decode("ascii", "replace"), None) if module in (b"torch", b"torch.cuda") else None
    return isinstance(known, torch.dtype) or (name.endswith(b"Storage") and known is not None)


def moves_storages() -> bool:
    """Whether torch may copy a storage to where it was saved from, as soon as it has it.

    That is to an accelerator that is here, or by what a package registered with ``torch.serialization``.
    """
    return _has_accelerator() or foreign_packages()


def _has_accelerator() -> bool:
    if not torch.backends.cuda.is_built():
        return torch.accelerator.is_available()
    return torch.cuda.is_initialized() or _has_gpu(os.environ.get("CUDA_VISIBLE_DEVICES"))


@functools.lru_cache(maxsize=4)
def _has_gpu(visible: str | None) -> bool:
    """To ask ``torch.cuda.is_available`` would forbid CUDA to children that are forked later: this asks NVML first."""
    return torch.cuda.device_count() > 0


def foreign_packages() -> bool:
    """Whether a package registered with ``torch.serialization`` where its storages go."""
    return _foreign_among(tuple(_serialization._package_registry))


@functools.lru_cache(maxsize=4)
def _foreign_among(packages: tuple[tuple[Any, ...], ...]) -> bool:
    functions = (function for _, *both in packages for function in both)
    return any(getattr(function, "func", function).__module__ != "torch.serialization" for function in functions)
