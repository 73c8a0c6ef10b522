"""``.pt``, writing: state dicts pickled without Python between one object and the next.

torch reduces every tensor in Python, and Python's pickler asks of every object what its persistent id is: most of the
time of saving 10,000 tensors. What state dicts are made of (tensors, parameters, dtypes, numbers, text, lists, tuples
and dicts) is pickled natively, byte for byte as torch does it. Of an object that holds anything else torch pickles all.
"""

from __future__ import annotations

import copyreg
import functools
import pickle as python_pickle
from collections import OrderedDict
from typing import Any

import torch

from fastio import _native
from fastio.formats.pt.registered_packages import foreign_packages

PROTOCOL = 2  # torch's, and the only one that is written here

_utils: Any = torch._utils
_storage: Any = torch.storage
_serialization: Any = torch.serialization
_REBUILD = (_utils._rebuild_tensor_v2, _utils._rebuild_parameter)
_REDUCED = {OrderedDict, torch.Tensor, torch.nn.Parameter}


def pickle(obj: Any) -> tuple[bytes, list[tuple[str, torch.UntypedStorage, int]]] | None:
    """What torch writes for an object, and each storage with its record's name and its size in bytes.

    None if it is torch's to pickle: also where a program has its own way to reduce tensors (``copyreg``).
    """
    if not _REDUCED.isdisjoint(copyreg.dispatch_table):
        return None
    cpu = None if foreign_packages() else "cpu"
    return _native.pickle(obj, _names(), _storages(), _REBUILD, _serialization.location_tag, cpu)


@functools.cache
def _storages() -> dict[torch.dtype, type]:
    """The class of a storage by its dtype; without those of newer dtypes, which torch rebuilds in another way."""
    newer = _storage._new_dtypes()
    kinds = _storage._dtype_to_storage_type_map()
    return {dtype: getattr(torch, name) for dtype, name in kinds.items() if dtype not in newer}


@functools.cache
def _names() -> dict[Any, bytes]:
    """What Python's pickler writes for a function, a class or a dtype: ``c``, module and name, a line each."""
    dtypes = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
    wanted = (OrderedDict, *_REBUILD, *_storages().values(), *dtypes)
    written = {one: python_pickle.dumps(one, PROTOCOL).partition(b"q\0")[0].removeprefix(b"\x80\2") for one in wanted}
    return {one: text for one, text in written.items() if text.startswith(b"c")}
