"""Unpickling of DCP's metadata: the classes that it is made of, and no others.

A pickle may call anything that it can name, and ``.metadata`` lies in a folder to which other users may write. So names
are looked up in a table, and only instances of its classes are given a state.
"""

from __future__ import annotations

import importlib
import io
import pathlib
import pickle
from collections import OrderedDict
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import filesystem, metadata

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
# Metadata of torch before 2.3 has these in the places of TensorProperties and its encoding.
_EARLIER = "torch.distributed._shard.sharded_tensor.metadata"
_EARLIER_NAMES = ("TensorProperties", "MEM_FORMAT_ENCODING")


_InPython: Any = pickle._Unpickler


class _Unpickler(_InPython):  # type: ignore[misc]
    """Python's own in Python: that in C gives a state to whatever is there, to a class or a member of an enum too."""

    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        given = _trusted_by_user()
        self._known = {**_KNOWN, **given}
        self._stateful = {*_METADATA, *(what for what in given.values() if isinstance(what, type))}

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
            f"it names {module}.{name}, which DCP's metadata has no use for: load it only if you trust whoever wrote "
            "it, after torch.serialization.add_safe_globals() with that class"
        )

    def load_build(self) -> None:
        instance = self.stack[-2]
        if type(instance) not in self._stateful:
            raise pickle.UnpicklingError(f"it changes {instance!r}, which is no part of DCP's metadata")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def unpickle(stream: io.BytesIO) -> Any:
    """The object whose pickle begins where the stream is. UnpicklingError names the class that is refused."""
    return _Unpickler(stream).load()


def _trusted_by_user() -> dict[tuple[str, str], Any]:
    """What the program has told torch that it trusts, by module and name."""
    found = {}
    for given in torch.serialization.get_safe_globals():
        what, path = given if isinstance(given, tuple) else (given, f"{given.__module__}.{given.__qualname__}")
        module, _, name = path.rpartition(".")
        found[module, name] = what
    return found
