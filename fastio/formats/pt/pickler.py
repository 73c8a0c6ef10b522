"""Pickles state dicts in native code, byte for byte as torch does.

torch reduces every tensor in Python, and Python's pickler calls ``persistent_id`` for every object. That is most of
the time of saving 10,000 tensors. The native pickler handles tensors, parameters, dtypes, numbers, text, lists, tuples
and dicts. If an object holds anything else, torch pickles all of it.
"""

from __future__ import annotations

import copyreg
import functools
import pickle as python_pickle
from collections import OrderedDict
from typing import Any

import torch

from fastio import devices
from fastio._native import pickle as native_pickle
from fastio.formats.pt.registered_packages import foreign_packages

PROTOCOL = 2  # torch's default, and the only protocol that the native pickler writes

_utils: Any = torch._utils
_storage: Any = torch.storage
_serialization: Any = torch.serialization
_REBUILD = (_utils._rebuild_tensor_v2, _utils._rebuild_parameter)
_REDUCED = {OrderedDict, torch.Tensor, torch.nn.Parameter}


def pickle(obj: Any) -> tuple[bytes, list[tuple[str, torch.UntypedStorage, int]], bool] | None:
    """Return the pickle that torch writes for an object, for each storage (record name, storage, bytes),
    and whether a storage ends within an element, which is left out.

    None if torch must pickle it, also where a program registered its own reducer for tensors (``copyreg``).
    """
    if not _REDUCED.isdisjoint(copyreg.dispatch_table):
        return None
    cpu = None if foreign_packages() else "cpu"
    return native_pickle(
        obj, _pickled_globals(), _storage_classes(), _REBUILD, _serialization.location_tag, cpu, devices.all_kinds()
    )


@functools.cache
def _storage_classes() -> dict[torch.dtype, type]:
    """Return the storage class of each dtype, without the newer dtypes, which torch rebuilds in another way."""
    newer = _storage._new_dtypes()
    kinds = _storage._dtype_to_storage_type_map()
    return {dtype: getattr(torch, name) for dtype, name in kinds.items() if dtype not in newer}


@functools.cache
def _pickled_globals() -> dict[Any, bytes]:
    """Return what Python's pickler writes for each function, class and dtype: ``c`` and module, then name, as lines."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    objects = (OrderedDict, *_REBUILD, *_storage_classes().values(), *dtypes)
    written = {obj: python_pickle.dumps(obj, PROTOCOL).partition(b"q\0")[0].removeprefix(b"\x80\2") for obj in objects}
    return {obj: text for obj, text in written.items() if text.startswith(b"c")}
