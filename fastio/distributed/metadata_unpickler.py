"""Unpickles DCP's metadata, allowing only the classes that it is made of.

A pickle can call anything that it names, and other users may write to the folder of ``.metadata``. So names are looked
up in a table, and only instances of its classes are given a state.

Native code unpickles what DCP writes. What it does not know (classes that the program trusts, metadata of torch before
2.3, other protocols, what is refused) is unpickled in Python, twenty times as slowly, by the same rules.
"""

from __future__ import annotations

import functools
import importlib
import io
import pathlib
import pickle
from collections import OrderedDict
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import filesystem, metadata

from fastio._native import unpickle as native_unpickle

_METADATA = (
    metadata.Metadata,
    metadata.StorageMeta,
    metadata.MetadataIndex,
    metadata.TensorStorageMetadata,
    metadata.BytesStorageMetadata,
    metadata.ChunkStorageMetadata,
    metadata.TensorProperties,
    filesystem._StorageInfo,
)
_VALUES = (metadata._MEM_FORMAT_ENCODING, torch.Size, OrderedDict, pathlib.PosixPath)
_LAYOUTS = {str(layout): layout for layout in vars(torch).values() if isinstance(layout, torch.layout)}
_KNOWN: dict[tuple[str, str], Any] = {
    **{(kind.__module__, kind.__qualname__): kind for kind in (*_METADATA, *_VALUES)},
    ("pathlib", "PosixPath"): pathlib.PosixPath,
    ("pathlib._local", "PosixPath"): pathlib.PosixPath,  # as Python 3.13 writes it
    ("torch.serialization", "_get_layout"): _LAYOUTS.__getitem__,
}
_CLASSES: frozenset[type] = frozenset(_METADATA)
_CALLS = {value: value for value in (*_VALUES, _KNOWN["torch.serialization", "_get_layout"])}
# Metadata of torch before 2.3 has these instead of TensorProperties and its encoding.
_EARLIER = "torch.distributed._shard.sharded_tensor.metadata"
_EARLIER_NAMES = ("TensorProperties", "MEM_FORMAT_ENCODING")


_InPython: Any = pickle._Unpickler


class _Unpickler(_InPython):  # type: ignore[misc]
    """Extends the unpickler written in Python: the one in C gives a state to any object, even a class."""

    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        trusted = _trusted_by_user()
        self._known = {**_KNOWN, **trusted}
        self._stateful = {*_METADATA, *(value for value in trusted.values() if isinstance(value, type))}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._known:
            return self._known[module, name]
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        if module == _EARLIER and name in _EARLIER_NAMES:
            earlier = getattr(importlib.import_module(_EARLIER), name)
            self._stateful.add(earlier)
            return earlier
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which DCP's metadata has no use for: load it only if you trust its author, "
            "after torch.serialization.add_safe_globals() with that class"
        )

    def load_build(self) -> None:
        instance = self.stack[-2]
        if type(instance) not in self._stateful:
            raise pickle.UnpicklingError(f"it changes {instance!r}, which is no part of DCP's metadata")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def unpickle(data: bytes) -> tuple[Any, int]:
    """Return the object that a pickle holds, and the bytes behind the pickle.

    UnpicklingError names a class that is refused.
    """
    found = native_unpickle(data, _names(), _CALLS, _no_storage, _CLASSES)
    if found is not None:
        return found
    stream = io.BytesIO(data)
    made = _Unpickler(stream).load()
    return made, len(data) - stream.tell()


@functools.cache
def _names() -> dict[bytes, Any]:
    """The globals by their pickled names."""
    dtypes = {("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    return {f"{module}\n{name}".encode(): value for (module, name), value in (_KNOWN | dtypes).items()}


def _no_storage(identity: Any) -> Any:
    raise pickle.UnpicklingError(f"it holds a storage ({identity}), which DCP's metadata has no use for")


def _trusted_by_user() -> dict[tuple[str, str], Any]:
    """Return the program's safe globals (``torch.serialization.add_safe_globals``), by module and name."""
    found = {}
    for entry in torch.serialization.get_safe_globals():
        value, path = entry if isinstance(entry, tuple) else (entry, f"{entry.__module__}.{entry.__qualname__}")
        module, _, name = path.rpartition(".")
        found[module, name] = value
    return found
