"""Locates tensors in items that DCP's own storage wrote: consecutive zip files in a data file.

The metadata says only where an item lies, so its first and last kilobytes are read. The zip directory gives the offset
of the tensor's bytes and their CRC-32. The pickle gives the tensor's geometry: torch's restricted unpickler reads it
with storages on the meta device.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import zipfile
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from fastio._native import crc32
from fastio.distributed.stored_items import Stored
from fastio.errors import CorruptFileError, UnsupportedError, quoted, shortened
from fastio.formats.pt import torch_probe
from fastio.formats.pt.reader import Reader, unpickle
from fastio.formats.small_reads import read_at
from fastio.memory.load_buffers import Region

# torch's small records and the directory of one tensor take less than a kilobyte each.
_ENDS = 2048
_LOCAL_NAME_LENGTH, _LOCAL_HEADER = 26, 30
_BEGIN, _END, _END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22


class Entry(NamedTuple):
    """An item of a data file, as DCP's metadata has it."""

    name: str
    offset: int
    nbytes: int


class _Geometry(NamedTuple):
    """The dtype, size, stride and storage offset of a tensor."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    first: int


def locate_tensors(path: str, fd: int, entries: Sequence[Entry]) -> list[Stored]:
    """Return what is known of items that hold one tensor each. CorruptFileError names an item that is damaged."""
    with contextlib.suppress(OSError):  # a hint to the kernel to read all the ends at once
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for entry in entries:
            last = max(entry.nbytes - _ENDS, 0)
            os.posix_fadvise(fd, entry.offset, _ENDS, os.POSIX_FADV_WILLNEED)
            os.posix_fadvise(fd, entry.offset + last, _ENDS, os.POSIX_FADV_WILLNEED)
    known: dict[bytes, _Geometry | None] = {}
    try:
        return [_stored(path, fd, entry, known) for entry in entries]
    finally:
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)


def check(path: str, name: str, data: memoryview) -> bool:
    """Compare a file of torch.save with its CRC-32s; return whether it has any, as other bytes never have.

    CorruptFileError names the record.
    """
    begins, ends = bytes(data[:4]) == _BEGIN, _END in bytes(data[-_END_BYTES:])
    if not begins and not ends:
        return False
    if not begins:
        raise CorruptFileError(path, name, f"it begins with {bytes(data[:4])!r}, but ends as a file of torch.save")
    with _zip(path, name, io.BytesIO(data)) as archive:
        has_crcs = any(record.CRC for record in archive.infolist())
        damaged = archive.testzip() if has_crcs else None
    if damaged is not None:
        raise CorruptFileError(path, name, f"its part {quoted(damaged)} does not match its CRC-32")
    return has_crcs


def _stored(path: str, fd: int, entry: Entry, known: dict[bytes, _Geometry | None]) -> Stored:
    view = _Ends(path, fd, entry)
    head = view.peek(0, 4)
    if head != _BEGIN:
        if view.is_zip():
            raise CorruptFileError(path, entry.name, f"it begins with {head!r}, but ends as a file of torch.save")
        raise UnsupportedError(
            f"{path}: the item {quoted(entry.name)} begins with {head!r}: torch.save did not write it (DCP can "
            "write safetensors, and items that extensions transform); load it with DCP's own reader"
        )
    whole = Stored(entry.name, entry.offset, entry.nbytes, None)
    with _zip(path, entry.name, view) as archive:
        records = {record.filename.partition("/")[2]: record for record in archive.infolist()}
    pickled, data = records.get("data.pkl"), records.get("data/0")
    if pickled is None or data is None or "data/1" in records or torch_probe.unsupported_reason():
        return whole
    if any(record.compress_type for record in (pickled, data)) or not _same_byte_order(view, records):
        return whole
    text = view.record(pickled)
    checksummed = any(record.CRC for record in records.values())
    if checksummed and crc32(text) != pickled.CRC:
        raise CorruptFileError(path, entry.name, "its part 'data.pkl' does not match its CRC-32")
    if text not in known:
        known[text] = _geometry(path, entry, view, records, text)
    geometry = known[text]
    if geometry is None:
        return whole
    start = entry.offset + view.start(data)
    return Stored(entry.name, start, data.file_size, data.CRC if checksummed else None, *geometry)


def _geometry(
    path: str, entry: Entry, view: _Ends, records: dict[str, zipfile.ZipInfo], text: bytes
) -> _Geometry | None:
    """Return the geometry of the tensor that a pickle makes; None if it is not a plain tensor."""
    regions = {name: Region(name, 0, record.file_size, record.CRC) for name, record in records.items()}
    archive: Any = SimpleNamespace(
        path=path, records=regions, read=lambda name, _: text if name == "data.pkl" else view.record(records[name])
    )
    meta = torch.device("meta")
    reader = Reader(archive, False, lambda region: torch.UntypedStorage(region.nbytes, device=meta))
    try:
        tensor = unpickle(reader, lambda storage, _: storage, True, {})
    except CorruptFileError as error:
        raise CorruptFileError(path, entry.name, error.problem) from None
    except Exception:  # this torch cannot unpickle it on the meta device: the whole item is read instead
        return None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return None
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return None
    return _Geometry(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def _same_byte_order(view: _Ends, records: dict[str, zipfile.ZipInfo]) -> bool:
    return "byteorder" not in records or view.record(records["byteorder"]).decode("ascii", "replace") == sys.byteorder


@contextlib.contextmanager
def _zip(path: str, name: str, stream: Any) -> Any:
    try:
        with zipfile.ZipFile(stream) as archive:
            yield archive
    except (zipfile.BadZipFile, struct.error, NotImplementedError, EOFError, ValueError, ArithmeticError) as error:
        raise CorruptFileError(path, name, f"it is not a complete zip file: {shortened(error)}") from error


class _Ends(io.RawIOBase):
    """Presents an item as a file; its first and last kilobytes are read at once."""

    def __init__(self, path: str, fd: int, entry: Entry) -> None:
        super().__init__()
        self._path, self._fd, self._entry = path, fd, entry
        self._position = 0
        self._last = max(entry.nbytes - _ENDS, 0)
        self._tail = read_at(path, fd, entry.offset + self._last, entry.nbytes - self._last, entry.name)
        first = min(_ENDS, self._last)
        self._head = read_at(path, fd, entry.offset, first, entry.name)

    def peek(self, offset: int, nbytes: int) -> bytes:
        """Return ``nbytes`` of the item from ``offset``; fewer at its end."""
        nbytes = max(min(nbytes, self._entry.nbytes - offset), 0)
        if offset >= self._last:
            return self._tail[offset - self._last : offset - self._last + nbytes]
        if offset + nbytes <= len(self._head):
            return self._head[offset : offset + nbytes]
        return read_at(self._path, self._fd, self._entry.offset + offset, nbytes, self._entry.name)

    def is_zip(self) -> bool:
        """Return whether the item ends as a zip file does."""
        return _END in self._tail[-_END_BYTES:]

    def start(self, record: zipfile.ZipInfo) -> int:
        """Return the offset of a record's bytes in the item."""
        lengths = self.peek(record.header_offset + _LOCAL_NAME_LENGTH, 4)
        if len(lengths) < 4:
            raise CorruptFileError(
                self._path, self._entry.name, f"its part {quoted(record.filename)} lies beyond its end"
            )
        begin: int = record.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", lengths))
        if begin + record.file_size > self._entry.nbytes:
            raise CorruptFileError(
                self._path, self._entry.name, f"its part {quoted(record.filename)} ends beyond its end"
            )
        return begin

    def record(self, record: zipfile.ZipInfo) -> bytes:
        """Return a small record's bytes."""
        return self.peek(self.start(record), record.file_size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._entry.nbytes}[whence]
        self._position = max(origin + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, nbytes: int = -1) -> bytes:
        data = self.peek(self._position, self._entry.nbytes if nbytes < 0 else nbytes)
        self._position += len(data)
        return data
