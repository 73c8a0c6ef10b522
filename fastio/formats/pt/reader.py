"""Reads the directory of a ``.pt`` file, and unpickles its object over storages that are filled and checked.

``torch.serialization._load`` takes each storage from a zip reader by record name. :class:`Reader` stands in for that
reader and returns the load's own memory. Unpickling runs after every byte was read and its CRC compared, so it sees
only checked values.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastio._native import ZipDirectory, crc32
from fastio.errors import CorruptFileError
from fastio.formats.pt import unpickler
from fastio.formats.pt.pickle_errors import named_pickle_errors
from fastio.formats.pt.placeholders import Placeholders
from fastio.formats.pt.zip_kinds import not_torch_save
from fastio.formats.small_reads import read_at
from fastio.memory.load_buffers import Region
from fastio.runtime.native_errors import translate_native_errors
from fastio.sizes import exact_size
from fastio.volumes import views

PICKLE = "data.pkl"
_DATA = "data/"
_ALIGNMENT = 64  # of torch's records; fastio's pages are multiples of it
# Local file header: signature, length of the name, of the extra field (PKWARE's APPNOTE 6.3, section 4.3.7).
_HEADER = struct.Struct("<4s22xHH")
_NO_CRC = b"PK\x07\x08" + bytes(4)  # start of a data descriptor whose CRC is 0 (APPNOTE 6.3, section 4.3.9)
Record = Region
"""One record of the archive; its name is relative to the archive's folder."""


class NeedsTorchError(Exception):
    """fastio cannot fill the archive in place, so torch must read it; the message says why.

    ``archive`` is its directory.
    """

    def __init__(self, reason: str, archive: Archive) -> None:
        super().__init__(reason)
        self.archive = archive


class Archive:
    """The directory of an open ``.pt`` file. Record names are relative to the archive's folder.

    ``checksummed``: records carry CRCs; those of storages may lack them (:attr:`has_storage_crcs`).
    """

    __slots__ = ("checksummed", "directory", "fd", "path", "records")

    def __init__(
        self, path: str, fd: int, directory: ZipDirectory, records: dict[str, Record], checksummed: bool
    ) -> None:
        self.path = path
        self.fd = fd
        self.directory = directory
        self.records = records
        self.checksummed = checksummed

    @property
    def storages(self) -> list[Record]:
        """The records that hold storages, in file order."""
        return [record for name, record in self.records.items() if name.startswith(_DATA) and record.nbytes]

    def storages_in(self, pickled: bytes) -> list[Record]:
        """Return the records whose names a pickle contains. A name that the pickle computes is not found."""
        mentioned = self.directory.mentioned(pickled)
        return [record for record, is_mentioned in zip(self.records.values(), mentioned, strict=True) if is_mentioned]

    @property
    def has_compressed_records(self) -> bool:
        """Whether some record is compressed or encrypted: its CRC is then not that of its bytes in the file."""
        return any(method != 0 or encrypted for method, encrypted, _ in self.directory.methods())

    @property
    def is_aligned(self) -> bool:
        """Whether every record that is not empty begins on a multiple of 64 bytes, as torch and fastio write it."""
        return not any(record.nbytes and record.offset % _ALIGNMENT for record in self.records.values())

    @property
    def has_storage_crcs(self) -> bool:
        """Whether storages carry CRCs.

        Storages written under ``torch.serialization.skip_data`` and filled later have 0 in both places of the CRC: in
        the directory and behind the bytes. One flipped bit cannot turn any other CRC into that.
        """
        if not self.checksummed:
            return False
        storages = self.storages
        return not storages or any(record.crc for record in storages) or not all(map(self._has_no_crc, storages))

    def _has_no_crc(self, record: Record) -> bool:
        return read_at(self.path, self.fd, record.offset + record.nbytes, 8, record.name) == _NO_CRC

    def read(self, name: str, verify: bool) -> bytes:
        """Return a small record's checked bytes. KeyError if there is no such record.

        Their offset comes from the header in front of them, not from the directory's derived offset.
        """
        record = self.records[name]
        data = read_at(self.path, self.fd, record.begin, record.offset + record.nbytes - record.begin, name)
        start = self._header_length(record, data)
        if record.begin + start == record.offset:
            data = data[start:]
        else:
            data = read_at(self.path, self.fd, record.begin + start, record.nbytes, name)
        if verify and self.checksummed and crc32(data) != record.crc:
            raise crc_mismatch(self.path, record)
        return data

    def confirms(self, records: Iterable[Record]) -> bool:
        """Whether the derived offsets of records are those of the headers in front of them, which are read."""
        for record in records:
            header = read_at(self.path, self.fd, record.begin, _HEADER.size, record.name)
            if record.begin + self._header_length(record, header) != record.offset:
                return False
        return True

    def _header_length(self, record: Record, header: bytes) -> int:
        signature, *lengths = _HEADER.unpack_from(header)
        if signature != b"PK\x03\x04":
            problem = f"has no header at offset {record.begin}, where the directory says"
            raise CorruptFileError(self.path, record.name, problem)
        return _HEADER.size + int(sum(lengths))


def crc_mismatch(path: str, record: Record) -> CorruptFileError:
    """Return the error for a record whose bytes do not match the directory's CRC."""
    return CorruptFileError(
        path,
        record.name,
        f"its {exact_size(record.nbytes)} at offset {record.offset} do not match their CRC-32 "
        f"({record.crc:08x}): the file "
        "was damaged after it was written; restore it from a copy (verify=False loads it as it is)",
    )


def open_archive(path: str, fd: int, size: int, read_local_headers: bool = False) -> Archive:
    """Read the directory of an archive.

    ``read_local_headers``: read the header in front of every record, instead of deriving its offset. CorruptFileError
    if the directory contradicts itself, FormatError for a zip file that torch.load does not open, NeedsTorchError if
    torch must read the archive.
    """
    with translate_native_errors(path):
        view = views.of(fd)
        directory = ZipDirectory(fd, size, read_local_headers, None if view is None else view.read)
        records: dict[str, Record] = {record.name: record for record in directory.records(Record)}
        if not directory.in_one_folder:
            raise not_torch_save(path, records, "its records are not in one folder")
        odd = directory.why_odd()
    archive = Archive(path, fd, directory, records, checksummed=any(record.crc for record in records.values()))
    if "constants.pkl" in records:
        raise NeedsTorchError("it is a TorchScript archive", archive)
    # In an archive unlike those of torch.save, torch also finds the record in upper case.
    if PICKLE not in records and not (odd and any(name.lower() == PICKLE for name in records)):
        raise not_torch_save(path, records, f"the record '{PICKLE}' is missing")
    if odd:
        raise NeedsTorchError(odd, archive)
    return archive


class _FilledStorage:
    """The part of ``get_storage_from_record``'s result that ``_load`` uses."""

    __slots__ = ("_untyped_storage",)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._untyped_storage = storage

    def _typed_storage(self) -> _FilledStorage:
        return self


class Reader:
    """Stands in for ``torch._C.PyTorchFileReader`` in ``torch.serialization._load``.

    ``storage_of`` returns the filled and checked storage of a record, or raises KeyError for a record that was not
    read. ``pickled`` is the object's pickle, if it was read already. ``placeholders`` are the storages of records that
    are not wanted; they stay on the CPU.
    """

    def __init__(
        self,
        archive: Archive,
        verify: bool,
        storage_of: Callable[[Record], torch.UntypedStorage],
        pickled: bytes | None = None,
        placeholders: Placeholders | None = None,
    ) -> None:
        self.path = archive.path
        self.placeholders = placeholders
        self._archive = archive
        self._verify = verify
        self._storage_of = storage_of
        self._pickle = pickled

    def has_record(self, name: str) -> bool:
        return name in self._archive.records

    def get_record(self, name: str) -> bytes:
        if name not in self._archive.records:
            raise CorruptFileError(self._archive.path, name, "is missing from the file")
        return self.pickle if name == PICKLE else self._archive.read(name, self._verify)

    @property
    def pickle(self) -> bytes:
        """The object's pickle. It is read once, though two unpicklers may use it."""
        if self._pickle is None:
            self._pickle = self._archive.read(PICKLE, self._verify)
        return self._pickle

    def get_storage_from_record(self, name: str, nbytes: int, _: Any) -> _FilledStorage:
        return _FilledStorage(self.storage(name, nbytes))

    def storage(self, name: str, nbytes: int) -> torch.UntypedStorage:
        """Return the storage of a record, which must have ``nbytes`` bytes."""
        record = self._archive.records.get(name)
        if record is None:
            raise CorruptFileError(self._archive.path, name, "is missing from the file")
        if record.nbytes != nbytes:
            sizes = f"has {exact_size(record.nbytes)}, but the tensors that use it need {exact_size(nbytes)}"
            problem = f"{sizes}: the file was altered; restore it from a copy"
            raise CorruptFileError(self._archive.path, name, problem)
        try:
            return self._storage_of(record)
        except KeyError:
            raise NeedsTorchError(f"its pickle computes the name of {name}", self._archive) from None

    def get_record_offset(self, name: str) -> int:
        return self._archive.records[name].offset

    def serialization_id(self) -> str:
        records = self._archive.records
        name = ".data/serialization_id"
        return self._archive.read(name, self._verify).decode("ascii", "replace") if name in records else ""


def unpickle(reader: Reader, map_location: Any, weights_only: bool, arguments: dict[str, Any]) -> Any:
    """Return the object over its filled storages. ``weights_only`` refuses what torch's does.

    CorruptFileError for a pickle without sense.
    """
    with named_pickle_errors(reader.path, PICKLE, weights_only):
        if not arguments:
            found = unpickler.unpickle(reader.pickle, map_location, reader.storage)
            if found is not None:
                return found[0]
        module: Any = pickle
        if weights_only:
            from torch import _weights_only_unpickler

            module = _weights_only_unpickler
        load: Any = torch.serialization._load
        if reader.placeholders is not None:
            map_location = _sparing(map_location, reader.placeholders)
        return load(reader, map_location, module, **{"encoding": "utf-8", **arguments})


def _sparing(map_location: Any, placeholders: Placeholders) -> Callable[[Any, str], Any]:
    """A map_location that leaves placeholders where they are, instead of on a device that has no room for them."""
    serialization: Any = torch.serialization
    restore = serialization._get_restore_location(map_location)
    return lambda storage, location: restore(storage, location) if placeholders.record_of(storage) is None else storage
