"""Reads the header of a ``.safetensors`` file: where each tensor lies, and the metadata. All of it is checked."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fastio._native import header_rows
from fastio.errors import CorruptFileError, ForeignFileError, FormatError, kind_of, quoted
from fastio.files.open_file import not_a_file
from fastio.formats import foreign, shapes
from fastio.formats.detect import LARGEST_HEADER, NPY, PT, detect, is_legacy
from fastio.formats.pt.reader import NeedsTorchError, open_archive
from fastio.formats.safetensors import header as safetensors_header
from fastio.formats.safetensors.dtypes import ITEMSIZES, in_torch
from fastio.formats.safetensors.entries import Entry, HeaderEntries
from fastio.formats.small_reads import head, read_at
from fastio.runtime.native_errors import tensors_named
from fastio.sizes import exact_size

EXPECTED = "a file of safetensors"
METADATA = "__metadata__"
CHECKSUMS = "fastio.checksums"
"""The key of the metadata that holds fastio's checksums of the tensors."""
ADDED = {"format": "pt"}
"""What fastio adds beside its checksums if the caller gave no metadata."""
_NONE_GIVEN = re.compile(r'\s*\{"version":\d+,"metadata":null,')
_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
_AGAIN = "download or copy it again"
_CUT = f"the file was cut short or damaged; {_AGAIN}"


StoredTensors = tuple[list[str], list[str], list[list[int]]]
"""The names of tensors, and their dtypes and shapes in the header's words."""


class TensorTable(NamedTuple):
    """The tensors of a file, in its order. Of a ``.safetensors`` they begin at byte ``start``; of a ``.pt`` that is 0.

    ``metadata`` are without fastio's ``checksums``, which are text of JSON, and None if the caller of the save gave
    none. Both are None if the file has none.
    """

    entries: Mapping[str, Entry]
    metadata: dict[str, str] | None
    checksums: str | None
    start: int

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(entry.nbytes for entry in self.entries.values())

    @property
    def by_name(self) -> Collection[str]:
        """The names of the tensors, in the order of the header."""
        entries = self.entries
        return entries.index if isinstance(entries, HeaderEntries) else entries

    def in_order(self) -> list[str]:
        """The names of the tensors by offset, bytes and name."""
        entries = self.entries
        if isinstance(entries, HeaderEntries):
            return entries.rows.in_order
        return sorted(entries, key=lambda name: (entries[name].offset, entries[name].nbytes, name))

    def stored(self) -> StoredTensors:
        """The sorted names, and the dtypes and shapes that the header has for them."""
        names, entries = sorted(self.by_name), self.entries
        return names, [entries[name].stored_dtype for name in names], [entries[name].stored_shape for name in names]


def read(path: str, fd: int, size: int, expected: str = EXPECTED) -> TensorTable:
    """Read the header of an open file of ``size`` bytes, and compare every offset and shape with the file.

    CorruptFileError names what is wrong with the header, FormatError a tensor whose dtype torch lacks, or a file of
    another format. ``expected`` is what the caller takes, in words.
    """
    length = int.from_bytes(head(path, fd, size, 8), "little")
    if not 0 < length <= min(size - 8, LARGEST_HEADER):
        _refuse(path, fd, size, length, expected)
    text = read_at(path, fd, 8, length)
    start = 8 + length
    with tensors_named():
        return _of_usual(text, start, size) or _of_any(path, text, start, size)


def _refuse(path: str, fd: int, size: int, length: int, expected: str) -> None:
    """Raise an error for a file that cannot have a header of ``length`` bytes, by what it is instead."""
    first = head(path, fd, size, foreign.HEAD_BYTES)
    found = detect(first, "")
    if found == PT:
        with contextlib.suppress(NeedsTorchError):
            open_archive(path, fd, size)  # raises for a zip file of another program
    if found in (PT, NPY) or is_legacy(first):
        what = f"a .{found}" if found else "torch's legacy format"
        raise FormatError(f"{path}: expected {expected}, found {what}: load it by fastio.load")
    if known := not_a_file(os.fstat(fd)) or foreign.problem(first, expected):
        raise ForeignFileError(path, None, known)
    read_at(path, fd, 0, 8)  # a file of fewer bytes was cut short
    if length > size and first[8:9] not in (b"{", b""):
        raise ForeignFileError(path, None, foreign.unknown(first, expected))
    if length:
        said = f"its header is said to have {exact_size(length)}; the file has {exact_size(size)}"
        raise CorruptFileError(path, None, f"{said}: it is no file of safetensors, or was cut short; {_AGAIN}")


def _of_usual(text: bytes, start: int, size: int) -> TensorTable | None:
    """The table of a header as most programs write it; None if anything is unusual about it, or wrong."""
    found = header_rows(text, ITEMSIZES, size - start)
    if found is None:
        return None
    rows, index, said = found
    metadata: dict[str, str] | None = None
    try:
        if said is not None:
            metadata = safetensors_header.parse(said)
            "".join([*metadata, *metadata.values()]).encode()  # text, and all of it Unicode
    except (ValueError, RecursionError, TypeError):
        return None
    return _table(HeaderEntries(rows, index, start), metadata, start)


def _of_any(path: str, text: bytes, start: int, size: int) -> TensorTable:
    """The table of a header, entry by entry, with an error for what is wrong."""
    try:
        header = safetensors_header.parse(text)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(path, None, f"its header is not the JSON it should be: {error}; {_AGAIN}") from None
    if not isinstance(header, dict):
        raise CorruptFileError(path, None, f"its header is {kind_of(header)}, not an object")
    _check_metadata(path, header)
    entries = {n: _entry(path, n, e, start, size - start) for n, e in header.items() if n != METADATA}
    _refuse_holes(path, entries, start, size)
    return _table(entries, header.get(METADATA), start)


def _table(entries: Mapping[str, Entry], metadata: dict[str, str] | None, start: int) -> TensorTable:
    checksums = metadata.pop(CHECKSUMS, None) if metadata else None
    if checksums is not None and metadata == ADDED and _NONE_GIVEN.match(checksums):
        metadata = None
    return TensorTable(entries, metadata, checksums, start)


def _is_text(metadata: Any) -> bool:
    """Whether it is a map of text to text."""
    return isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())


def _check_metadata(path: str, header: dict[str, Any]) -> None:
    """Check that names are text and metadata maps text to text, as the library demands."""
    metadata = {} if header.get(METADATA) is None else header[METADATA]
    if not _is_text(metadata):
        raise CorruptFileError(path, METADATA, "is no map of text to text", noun="entry")
    try:
        "".join([*header, *metadata, *metadata.values()]).encode()
    except UnicodeEncodeError as error:
        raise CorruptFileError(path, None, f"its header holds text that is not Unicode: {error.reason}") from None


def _entry(path: str, name: str, entry: Any, start: int, room: int) -> Entry:
    try:
        key, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise CorruptFileError(path, name, "its header entry lacks dtype, shape or data_offsets") from None
    if len(entry) > 3:
        ignored = [item for item in entry.items() if item[0] not in _FIELDS]
        try:
            safetensors_header.check_ignored(ignored)
        except ValueError as error:
            raise CorruptFileError(path, name, f"its header entry holds {error}") from None
    numbers: list[Any] = [*shape, begin, end] if isinstance(shape, list) else [None]
    if set(map(type, numbers)) != {int} or min(numbers) < 0:  # a bool is no int here
        raise CorruptFileError(
            path, name, f"its shape {quoted(shape)} or offsets {quoted([begin, end])} are not whole numbers"
        )
    if not isinstance(key, str):
        raise CorruptFileError(path, name, f"its dtype is {quoted(key)}, not a name")
    if not begin <= end <= room:
        raise CorruptFileError(
            path, name, f"its data_offsets are {quoted([begin, end])}, of {exact_size(room)} of data: {_CUT}"
        )
    dtype, size = in_torch(path, name, key, shape)
    problem = shapes.problem(size, dtype, key if size is shape else str(dtype), end - begin)
    if problem:
        raise CorruptFileError(path, name, problem)
    return Entry(dtype, size, start + begin, end - begin, key, shape)


def _refuse_holes(path: str, entries: dict[str, Entry], start: int, size: int) -> None:
    offset = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if entry.offset != offset:
            raise CorruptFileError(
                path, name, f"starts at {entry.offset - start}, but the tensor before it ends at {offset - start}"
            )
        offset += entry.nbytes
    if offset != size:
        raise CorruptFileError(
            path,
            None,
            f"the header accounts for {exact_size(offset - start)} of data, the file has "
            f"{exact_size(size - start)}: {_CUT}",
        )
