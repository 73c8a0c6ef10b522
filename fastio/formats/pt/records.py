"""Lists the records of a ``.pt`` file, pickled by torch or by the native pickler.

``torch.serialization._save`` pickles the object and passes every record to a zip writer. Here a stand-in for the writer
collects the records.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from types import FunctionType, SimpleNamespace
from typing import Any, BinaryIO, NamedTuple, cast

import torch

from fastio import devices
from fastio._native import unless_of
from fastio.formats.pt import pickler


class Records(NamedTuple):
    """The records of a ``.pt`` file, in torch's order: small ones with their bytes, storages with their sizes.

    ``trimmed``: a storage ends within an element, which is left out: torch's own file of it would not load.
    """

    small: Sequence[tuple[str, bytes]]
    storages: Sequence[tuple[str, torch.UntypedStorage, int]]
    trimmed: bool = False


class _Collector:
    """Stands in for ``torch._C.PyTorchFileWriter`` and collects the records that ``_save`` writes."""

    def __init__(self, storages: dict[str, Any]) -> None:
        self.small: list[tuple[str, bytes]] = []
        self.storages: list[tuple[str, torch.UntypedStorage, int]] = []
        self.trimmed = False
        self._storages_by_key = storages

    def write_record(self, name: str, data: Any, nbytes: int) -> None:
        if isinstance(data, torch.UntypedStorage):
            self._add(name, data, nbytes)
        else:
            self.small.append((name, data.encode() if isinstance(data, str) else bytes(data)))

    def write_record_metadata(self, name: str, nbytes: int) -> None:
        """Collect a storage; ``_save`` calls this instead of write_record inside ``skip_data()``."""
        storage = self._storages_by_key[name.removeprefix("data/")]
        self._add(name, getattr(storage, "_untyped_storage", storage), nbytes)

    def _add(self, name: str, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Collect a storage, of which a load expects whole elements; no tensor of its dtype has a byte of the rest."""
        dtype = getattr(self._storages_by_key.get(name.removeprefix("data/")), "dtype", torch.uint8)
        self.trimmed = self.trimmed or nbytes % dtype.itemsize != 0
        self.storages.append((name, storage, nbytes - nbytes % dtype.itemsize))


# The types of nearly all objects in a pickle. None of them is a storage, so none has a persistent id.
_NON_STORAGE_TYPES = (
    str, int, tuple, dict, OrderedDict, float, bool, type(None), list, type, type(torch.FloatStorage), FunctionType,
    torch.Tensor,
)  # fmt: skip


def _pickle_module(storages: dict[str, Any], module: Any) -> Any:
    """Return a stand-in for a pickle ``module`` whose pickler stores in ``storages`` the storage of each key.

    torch calls ``persistent_id`` in Python for every object of a pickle, a third of the time of saving 10,000 tensors.
    Here it is called only for objects that may be storages.

    The pickler itself is never inside ``skip_data()``: there torch refuses quantized and nested tensors, and an object
    that calls torch.save to be pickled would be saved without its data.
    """

    class Pickler(module.Pickler):  # type: ignore[misc]
        def dump(self, obj: Any) -> None:
            with torch.serialization.skip_data():  # which restores the setting
                torch.serialization._serialization_tls.skip_data = False
                super().dump(obj)

        def __init_subclass__(cls) -> None:
            inner = cast(Any, cls).persistent_id

            def persistent_id(obj: Any) -> Any:
                found = inner(None, obj)  # torch's persistent_id ignores its pickler
                if found is not None:
                    storages[found[2]] = obj
                return found

            cast(Any, cls).persistent_id = unless_of(_NON_STORAGE_TYPES, persistent_id)

    return SimpleNamespace(Pickler=Pickler)


class _Placeholder:
    """Stands in for a pickle module whose pickler writes nothing, whatever the object."""

    class Pickler:
        def __init__(self, stream: BinaryIO, protocol: int) -> None:
            pass

        def dump(self, obj: Any) -> None:
            pass


@functools.cache
def _records_around(without_byteorder: bool) -> tuple[tuple[str, bytes], ...]:
    """The small records that ``_save`` writes, with an empty pickle: all else in them is the same for every object."""
    collector = _Collector({})
    torch.serialization._save(None, collector, _Placeholder, pickler.PROTOCOL, without_byteorder)
    return tuple(collector.small)


def pickled(
    obj: Any, pickle_protocol: int, _disable_byteorder_record: bool = False, pickle_module: Any = pickle
) -> Records:
    """Return the records that torch.save would write: small ones with their bytes, storages where they are."""
    if pickle_module is pickle and pickle_protocol == pickler.PROTOCOL:
        found = pickler.pickle(obj)
        if found is not None:
            around = _records_around(bool(_disable_byteorder_record))
            return Records([(name, data or found[0]) for name, data in around], found[1], found[2])
    storages: dict[str, Any] = {}
    collector = _Collector(storages)
    # With an accelerator, _save would copy each storage to the host; inside skip_data() it does not touch them.
    with torch.serialization.skip_data() if devices.in_use() else contextlib.nullcontext():
        module = _pickle_module(storages, pickle_module)
        torch.serialization._save(obj, collector, module, pickle_protocol, _disable_byteorder_record)
    return Records(collector.small, collector.storages, collector.trimmed)
