"""``.pt``, reading: torch's own unpickling over storages that are filled and checked.

``torch.serialization._load`` asks a zip reader for each storage by record name. The reader here answers with memory of
the load's own. It runs when every byte is in and its CRC was compared, so whatever unpickling looks at is right.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

import torch

from fastio import _native
from fastio.errors import CorruptFileError
from fastio.formats.pt import unpickler
from fastio.formats.pt.zip_kinds import not_of_save
from fastio.formats.small_reads import read_at
from fastio.memory.load_buffers import Region
from fastio.runtime.native_errors import translate_native_errors

PICKLE = "data.pkl"
_DATA = "data/"
_HEADER = struct.Struct("<4s22xHH")  # signature, bytes of the name, of the extra field (APPNOTE 6.3, section 4.3.7)
_NO_CRC = b"PK\x07\x08" + bytes(4)  # how a data descriptor begins (PKWARE's APPNOTE 6.3, section 4.3.9)
Record = Region
"""One record of the archive, by its name inside the archive's folder."""


class NotPlainError(Exception):
    """The archive is not one that can be filled in place; the message says why. torch reads it instead.

    ``archive`` is its directory.
    """

    def __init__(self, reason: str, archive: Archive) -> None:
        super().__init__(reason)
        self.archive = archive


class Archive:
    """The directory of an open ``.pt`` file. Names are without the archive's folder.

    ``checksummed``: records carry CRCs, those of storages perhaps not (:attr:`sealed`).
    """

    __slots__ = ("checksummed", "directory", "fd", "path", "records")

    def __init__(
        self, path: str, fd: int, directory: _native.ZipDirectory, records: dict[str, Record], checksummed: bool
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
        """Those that a pickle may name. What it names by computing the name is not among them."""
        mentioned = self.directory.mentioned(pickled)
        return [record for record, is_mentioned in zip(self.records.values(), mentioned, strict=True) if is_mentioned]

    @property
    def inflates(self) -> bool:
        """Whether some record is compressed, or encrypted: then its bytes in the file are not those of its CRC."""
        return any(method != 0 or encrypted for method, encrypted, _ in self.directory.methods())

    @property
    def sealed(self) -> bool:
        """Whether storages carry CRCs.

        Those that ``torch.serialization.skip_data`` left room for, and their owner filled, have 0 in both places where
        a CRC is: in the directory and behind the bytes. One flipped bit does not make that of any other CRC.
        """
        if not self.checksummed:
            return False
        storages = self.storages
        return not storages or any(record.crc for record in storages) or not all(map(self._has_no_crc, storages))

    def _has_no_crc(self, record: Record) -> bool:
        return read_at(self.path, self.fd, record.offset + record.nbytes, 8, record.name) == _NO_CRC

    def read(self, name: str, verify: bool) -> bytes:
        """A small record's bytes, checked. KeyError if there is none.

        They are taken from behind the header in front of them, wherever they were derived to be.
        """
        record = self.records[name]
        data = read_at(self.path, self.fd, record.begin, record.offset + record.nbytes - record.begin, name)
        signature, *lengths = _HEADER.unpack_from(data)
        if signature != b"PK\x03\x04":
            raise CorruptFileError(self.path, name, f"has no header at offset {record.begin}, where the directory says")
        start = _HEADER.size + sum(lengths)
        if record.begin + start == record.offset:
            data = data[start:]
        else:
            data = read_at(self.path, self.fd, record.begin + start, record.nbytes, name)
        if verify and self.checksummed and _native.crc32(data) != record.crc:
            raise damaged(self.path, record)
        return data


def damaged(path: str, record: Record) -> CorruptFileError:
    """The error for a record whose bytes do not match the directory's CRC."""
    return CorruptFileError(
        path,
        record.name,
        f"its {record.nbytes} bytes at offset {record.offset} do not match their CRC-32 ({record.crc:08x}): the file "
        "was damaged after it was written; restore it from a copy (verify=False loads it as it is)",
    )


def open_archive(path: str, fd: int, size: int, careful: bool = False) -> Archive:
    """Read the directory.

    CorruptFileError where it contradicts itself, FormatError for a zip file that torch.load does not open,
    NotPlainError where torch must read it.
    """
    with translate_native_errors(path):
        directory = _native.ZipDirectory(fd, size, careful)
        records: dict[str, Record] = {record.name: record for record in directory.records(Record)}
        if not directory.in_one_folder:
            raise not_of_save(path, records, "its records are not in one folder")
        odd = directory.why_odd()
    archive = Archive(path, fd, directory, records, checksummed=any(record.crc for record in records.values()))
    if "constants.pkl" in records:
        raise NotPlainError("it is a TorchScript archive", archive)
    # In an odd archive torch finds the record in upper case, too.
    if PICKLE not in records and not (odd and any(name.lower() == PICKLE for name in records)):
        raise not_of_save(path, records, f"the record '{PICKLE}' is missing")
    if odd:
        raise NotPlainError(odd, archive)
    return archive


class _Filled:
    """What ``get_storage_from_record`` gives, as far as ``_load`` looks at it."""

    __slots__ = ("_untyped_storage",)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._untyped_storage = storage

    def _typed_storage(self) -> _Filled:
        return self


class Reader:
    """Takes the place of ``torch._C.PyTorchFileReader`` for ``torch.serialization._load``.

    ``storage_of`` gives the storage of a record, filled and checked; KeyError for a record that was not read.
    ``pickled`` is the object's pickle, if it was read already.
    """

    def __init__(
        self,
        archive: Archive,
        verify: bool,
        storage_of: Callable[[Record], torch.UntypedStorage],
        pickled: bytes | None = None,
    ) -> None:
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
        """The object's pickle, read once, though two unpicklers may ask for it."""
        if self._pickle is None:
            self._pickle = self._archive.read(PICKLE, self._verify)
        return self._pickle

    def get_storage_from_record(self, name: str, nbytes: int, _: Any) -> _Filled:
        return _Filled(self.storage(name, nbytes))

    def storage(self, name: str, nbytes: int) -> torch.UntypedStorage:
        """The storage of a record that must have so many bytes."""
        record = self._archive.records.get(name)
        if record is None:
            raise CorruptFileError(self._archive.path, name, "is missing from the file")
        if record.nbytes != nbytes:
            problem = f"has {record.nbytes} bytes, but the tensors that use it need {nbytes}: the file was altered"
            raise CorruptFileError(self._archive.path, name, problem)
        try:
            return self._storage_of(record)
        except KeyError:
            raise NotPlainError(f"its pickle computes the name of {name}", self._archive) from None

    def get_record_offset(self, name: str) -> int:
        return self._archive.records[name].offset

    def serialization_id(self) -> str:
        records = self._archive.records
        name = ".data/serialization_id"
        return self._archive.read(name, self._verify).decode("ascii", "replace") if name in records else ""


def unpickle(reader: Reader, map_location: Any, weights_only: bool, arguments: dict[str, Any]) -> Any:
    """The object, over storages that are filled. ``weights_only`` refuses what torch's does."""
    if not arguments:
        found = unpickler.unpickle(reader.pickle, map_location, reader.storage)
        if found is not None:
            return found[0]
    module: Any = pickle
    if weights_only:
        from torch import _weights_only_unpickler

        module = _weights_only_unpickler
    load: Any = torch.serialization._load
    return load(reader, map_location, module, **{"encoding": "utf-8", **arguments})
