"""Lays out and reads ``.safetensors`` files: a length, a JSON header, and the tensors without holes.

The source is "Format" in the format's own README. The header is padded with spaces so that the data starts on a page.
There are no checksums, for the format has no place for them.
"""

from __future__ import annotations

import json
from itertools import pairwise
from operator import itemgetter
from typing import Any

import torch

from fastio.errors import CorruptFileError, FormatError, quoted
from fastio.formats import dense_tensors, shapes
from fastio.formats.detect import LARGEST_HEADER
from fastio.formats.layout import Layout, LayoutBuilder
from fastio.formats.safetensors import header as safetensors_header
from fastio.formats.safetensors.dtypes import in_header, in_torch
from fastio.formats.small_reads import read_at
from fastio.formats.source import Source, StorageOf
from fastio.memory.load_buffers import Region, is_aligned

_PAGE = 4096
_METADATA = "__metadata__"
_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
_SURROGATES = " (it has a lone surrogate, as of a file name that was decoded with the wrong encoding); remove it"


def layout(obj: Any, path: str, metadata: dict[str, str] | None = None) -> Layout:
    """Lay out a dict of str to dense tensors (any shape); FormatError names the entry that the format cannot hold.

    ``metadata`` is the caller's own text, stored in the header.
    """
    if not isinstance(obj, dict):
        raise FormatError(f"{path}: safetensors holds a dict of tensors, got {type(obj).__name__}; save it as .pt")
    for name, tensor in obj.items():
        _check(path, name, tensor)
    _refuse_shared(path, obj)
    # The library's order: wide dtypes first, so that every tensor is aligned to its item size.
    ordered = sorted(obj.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    if metadata is not None:
        header[_METADATA] = _checked_metadata(path, metadata)
    offset = 0
    for name, tensor in ordered:
        nbytes = tensor.numel() * tensor.element_size()
        dtype, shape = in_header(path, name, tensor)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _PAGE)
    if len(text) > LARGEST_HEADER:
        raise FormatError(f"{path}: the header would have {len(text)} bytes, above the format's {LARGEST_HEADER}")
    start = bytearray(len(text).to_bytes(8, "little") + text)
    builder = LayoutBuilder()
    for name, tensor in ordered:
        if tensor.numel():
            builder.add_tensor(len(start) + header[name]["data_offsets"][0], tensor, name)
    return builder.build(start, [(0, 0, len(start))], (), len(start) + offset)


def _checked_metadata(path: str, metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise FormatError(f"{path}: safetensors' metadata is a dict of str to str, got {quoted(metadata)}")
    for key, text in metadata.items():
        if not (_is_unicode(key) and _is_unicode(text)):
            raise FormatError(f"{path}: the metadata {quoted(key)}: {quoted(text)} is not Unicode{_SURROGATES}")
    return metadata


def _check(path: str, name: Any, tensor: Any) -> None:
    if not isinstance(name, str):
        raise FormatError(f"{path}: safetensors names are str, got {quoted(name)} ({type(name).__name__})")
    if not _is_unicode(name):
        raise FormatError(f"{path}: the name {quoted(name)} is not Unicode{_SURROGATES}")
    if name == _METADATA:
        raise FormatError(f"{path}: the name {_METADATA!r} is the format's own; rename the tensor")
    if not isinstance(tensor, torch.Tensor):
        raise FormatError(f"{path}: {quoted(name)} is a {type(tensor).__name__}, not a tensor; save it as .pt")
    dense_tensors.check(path, quoted(name), tensor)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_shared(path: str, tensors: dict[str, torch.Tensor]) -> None:
    """Refuse tied tensors, as the library does: they would be loaded untied, twice as large."""
    spans = sorted(
        (tensor.untyped_storage().data_ptr(), *dense_tensors.span(tensor), index, name)
        for index, (name, tensor) in enumerate(tensors.items())
        if tensor.numel()
    )
    for left, right in pairwise(spans):  # if any two overlap, two neighbours do
        if left[0] == right[0] and right[1] < left[2]:
            (*_, first), (*_, second) = sorted((left, right), key=itemgetter(3))
            raise FormatError(
                f"{path}: {quoted(first)} and {quoted(second)} share memory, which safetensors cannot represent; "
                f"save {quoted(second)} as a clone(), leave one out, or save as .pt"
            )


def source(path: str, fd: int, size: int) -> Source:
    """Return what to read of a safetensors file.

    CorruptFileError names what is wrong with the header, FormatError a tensor whose dtype torch lacks.
    """
    length = int.from_bytes(read_at(path, fd, 0, 8), "little")
    if length > min(size - 8, LARGEST_HEADER):
        raise CorruptFileError(path, None, f"its header is said to have {length} bytes; the file has {size}")
    try:
        header = safetensors_header.parse(read_at(path, fd, 8, length))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(path, None, f"its header is not the JSON it should be: {error}") from None
    if not isinstance(header, dict):
        raise CorruptFileError(path, None, f"its header is a {type(header).__name__}, not an object")
    _check_metadata(path, header)
    start = 8 + length
    entries = {n: _entry(path, n, e, size - start) for n, e in header.items() if n != _METADATA}
    _refuse_holes(path, entries, size - start)
    regions = {n: Region(n, start + begin, end - begin, 0) for n, (_, _, begin, end) in entries.items()}

    def build(storage_of: StorageOf) -> dict[str, torch.Tensor]:
        tensors = {}
        for name, (dtype, shape, _, _) in entries.items():
            storage = storage_of(regions[name])
            tensors[name] = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, shape)  # type: ignore[call-overload]
        return tensors

    filled = sorted((r for r in regions.values() if r.nbytes), key=lambda region: region.offset)
    aligned = all(is_aligned(region.offset, entries[region.name][0].itemsize) for region in filled)
    return Source("safetensors", filled, build, checksummed=False, aligned=aligned)


def _check_metadata(path: str, header: dict[str, Any]) -> None:
    """Check that names are text and metadata maps text to text, as the library demands."""
    metadata = {} if header.get(_METADATA) is None else header[_METADATA]
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CorruptFileError(path, _METADATA, "is no map of text to text")
    try:
        "".join([*header, *metadata, *metadata.values()]).encode()
    except UnicodeEncodeError as error:
        raise CorruptFileError(path, None, f"its header holds text that is not Unicode: {error.reason}") from None


def _entry(path: str, name: str, entry: Any, room: int) -> tuple[torch.dtype, list[int], int, int]:
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
    numbers = [*shape, begin, end] if isinstance(shape, list) else [None]
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise CorruptFileError(
            path, name, f"its shape {quoted(shape)} or offsets {quoted([begin, end])} are not whole numbers"
        )
    if not isinstance(key, str):
        raise CorruptFileError(path, name, f"its dtype is {quoted(key)}, not a name")
    if not begin <= end <= room:
        raise CorruptFileError(path, name, f"its data_offsets are {quoted([begin, end])}, of {room} bytes of data")
    dtype, size = in_torch(path, name, key, shape)
    problem = shapes.problem(size, dtype, key if size is shape else str(dtype), end - begin)
    if problem:
        raise CorruptFileError(path, name, problem)
    return dtype, size, begin, end


def _refuse_holes(path: str, entries: dict[str, tuple[torch.dtype, list[int], int, int]], room: int) -> None:
    offset = 0
    for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != offset:
            raise CorruptFileError(path, name, f"starts at {begin}, but the tensor before it ends at {offset}")
        offset = end
    if offset != room:
        raise CorruptFileError(path, None, f"the header accounts for {offset} bytes of data, the file has {room}")
