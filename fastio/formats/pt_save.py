"""``.pt``, writing: torch's own pickling, and a layout that any transport can fill.

``torch.serialization._save`` pickles the object and hands every record to a zip writer; here the writer only notes
where each storage goes. The file is laid out byte for byte as torch lays it out, each large storage on a page.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from types import FunctionType, SimpleNamespace
from typing import Any, BinaryIO, NamedTuple, cast

import torch

from fastio import _native
from fastio.collector import held_back
from fastio.formats import pt_pickle
from fastio.formats.layout import Layout, LayoutBuilder

PAGE = 4096
_TORCH_ALIGNMENT = 64
# Padding every storage to a page may cost this share of their bytes at most.
_LARGEST_WASTE = 1 / 8
# Up to this size a storage costs less copied into the file's own bytes than moved on its own.
_WORTH_AN_EXTENT = 8 << 10
# Padding and copies are held in memory while the file is written, and what is loaded holds the padding again: so many
# bytes at most.
_MOST_HELD = 32 << 20
# What the zip format adds to a storage, about; and what of that lies between two storages, besides the name.
_HEADERS = 256
_BETWEEN = 50


class Records(NamedTuple):
    """What a ``.pt`` file is made of: small records with their bytes, storages with their sizes, in torch's order."""

    small: Sequence[tuple[str, bytes]]
    storages: Sequence[tuple[str, torch.UntypedStorage, int]]


class _Collector:
    """Takes the place of ``torch._C.PyTorchFileWriter``: notes the records that ``_save`` writes."""

    def __init__(self, storages: dict[str, Any]) -> None:
        self.small: list[tuple[str, bytes]] = []
        self.storages: list[tuple[str, torch.UntypedStorage, int]] = []
        self._seen = storages

    def write_record(self, name: str, data: Any, nbytes: int) -> None:
        if isinstance(data, torch.UntypedStorage):
            self.storages.append((name, data, nbytes))
        else:
            self.small.append((name, data.encode() if isinstance(data, str) else bytes(data)))

    def write_record_metadata(self, name: str, nbytes: int) -> None:
        """Called instead of write_record for storages inside ``skip_data()``."""
        storage = self._seen[name.removeprefix("data/")]
        self.storages.append((name, getattr(storage, "_untyped_storage", storage), nbytes))


# Of what a pickle is nearly all made of: none of them is a storage, so none has a persistent id.
_NO_STORAGES = (
    str, int, tuple, dict, OrderedDict, float, bool, type(None), list, type, type(torch.FloatStorage), FunctionType,
    torch.Tensor,
)  # fmt: skip


def _pickle_module(storages: dict[str, Any], module: Any) -> Any:
    """A stand-in for a pickle ``module`` whose pickler notes the storage behind each persistent id.

    Of every single object of a pickle torch asks, in Python, what its persistent id is: a third of the time of saving
    10,000 tensors. Here it is asked only of what may be a storage.
    """

    class Pickler(module.Pickler):  # type: ignore[misc]
        def __init_subclass__(cls) -> None:
            inner = cast(Any, cls).persistent_id

            def persistent_id(obj: Any) -> Any:
                found = inner(None, obj)  # it makes no use of its pickler
                if found is not None:
                    storages[found[2]] = obj
                return found

            cast(Any, cls).persistent_id = _native.unless_of(_NO_STORAGES, persistent_id)

    return SimpleNamespace(Pickler=Pickler)


def _pickled_module(data: bytes) -> Any:
    """A stand-in for a pickle module that knows the pickle already."""

    class Pickler:
        def __init__(self, stream: BinaryIO, protocol: int) -> None:
            self._stream = stream

        def dump(self, obj: Any) -> None:
            self._stream.write(data)

    return SimpleNamespace(Pickler=Pickler)


def layout(
    obj: Any,
    path: str,
    pickle_protocol: int = 2,
    _disable_byteorder_record: bool = False,
    pickle_module: Any = pickle,
) -> Layout:
    """Pickle ``obj`` as torch.save does and lay the file out; storages stay where they are, on any device.

    What cannot be pickled raises what torch.save raises.
    """
    with held_back():
        records = pickled(obj, pickle_protocol, _disable_byteorder_record, pickle_module)
        return lay_out(records, archive_name(path))


def pickled(
    obj: Any, pickle_protocol: int, _disable_byteorder_record: bool = False, pickle_module: Any = pickle
) -> Records:
    """The records that torch.save would write: small ones with their bytes, storages as they are."""
    storages: dict[str, Any] = {}
    collector = _Collector(storages)
    save: Any = torch.serialization._save
    if pickle_module is pickle and pickle_protocol == pt_pickle.PROTOCOL:
        found = pt_pickle.pickle(obj)
        if found is not None:
            save(obj, collector, _pickled_module(found[0]), pickle_protocol, _disable_byteorder_record)
            return Records(collector.small, found[1])
    # With CUDA, _save would copy each storage to the host; inside skip_data() it does not touch them.
    with torch.serialization.skip_data() if torch.cuda.is_initialized() else contextlib.nullcontext():
        save(obj, collector, _pickle_module(storages, pickle_module), pickle_protocol, _disable_byteorder_record)
    return Records(collector.small, collector.storages)


def lay_out(records: Records, archive: str) -> Layout:
    """A file of these records; ``archive`` is the folder inside it."""
    sizes = [nbytes for _, _, nbytes in records.storages]
    padding = _page_padding(records, archive)
    paged = padding <= min(sum(sizes) * _LARGEST_WASTE, _MOST_HELD)
    alignment, held = (PAGE, padding) if paged else (_TORCH_ALIGNMENT, 0)
    largest = _WORTH_AN_EXTENT
    while (small := sum(nbytes for nbytes in sizes if nbytes <= largest)) > _MOST_HELD - held:
        largest //= 2
    zip_file = _native.ZipBuilder(archive, alignment)
    zip_file.reserve(held + small + _HEADERS * len(sizes))
    builder = LayoutBuilder()
    identity = hashlib.blake2b(digest_size=16)
    for name, data in records.small:
        record = str(alignment).encode() if name == ".storage_alignment" else data
        identity.update(name.encode() + record)
        zip_file.add_bytes(name, record)
    copied = 0
    cpu = torch.device("cpu")
    for name, storage, nbytes in records.storages:
        if nbytes <= largest and storage.device == cpu:
            copied += nbytes
            zip_file.add_memory(name, storage.data_ptr(), nbytes)
        else:
            builder.add_storage(zip_file.add_extent(name, nbytes), storage, nbytes, name, checksum=True)
    builder.add_payload(copied)
    zip_file.add_bytes("version", b"3\n")
    zip_file.add_bytes(".data/serialization_id", str(int.from_bytes(identity.digest(), "big")).zfill(40)[:40].encode())
    zip_file.finish()
    return builder.build(memoryview(zip_file), zip_file.runs(), zip_file.patches(), zip_file.size)


def _page_padding(records: Records, archive: str) -> int:
    """The bytes lost where every storage starts on a page: nearly a page each, if their sizes are whole pages."""
    headers = _BETWEEN + len(archive) + len("/")
    return sum(-(nbytes + headers + len(name)) % PAGE for name, _, nbytes in records.storages)


def archive_name(path: str) -> str:
    """The folder name inside the zip, which torch takes from the file's own name."""
    base = os.path.basename(path)
    name = base.rpartition(".")[0] if "." in base else base
    return name if name and name.isascii() else "archive"
