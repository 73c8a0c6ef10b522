"""Lays out and reads ``.safetensors`` files: a length, a JSON header, and the tensors without holes.

The source is "Format" in the format's own README. The header is padded with spaces so that the data starts on a page.
The format has no checksums: fastio's are in the metadata (:mod:`fastio.formats.safetensors.header_checksums`) or in a
file beside it (:mod:`fastio.formats.safetensors.sidecar`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import torch

from fastio.errors import FormatError, kind_of, quoted
from fastio.formats import dense_tensors
from fastio.formats.detect import LARGEST_HEADER
from fastio.formats.key_selection import pick
from fastio.formats.layout import DigestPlace, Layout, LayoutBuilder
from fastio.formats.safetensors import header_checksums, sidecar, tensor_table
from fastio.formats.safetensors.dtypes import in_header
from fastio.formats.safetensors.header_checksums import PAGE
from fastio.formats.safetensors.tensor_checksums import TensorChecksums
from fastio.formats.safetensors.tensor_table import ADDED, CHECKSUMS, METADATA, TensorTable
from fastio.formats.source import Source, StorageOf
from fastio.memory.load_buffers import Region, is_aligned
from fastio.sizes import exact_size

_SURROGATES = " (it has a lone surrogate, as of a file name that was decoded with the wrong encoding); remove it"


def layout(
    obj: Any, path: str, metadata: dict[str, str] | None = None, checksums: bool = True, hashes: bool = False
) -> Layout:
    """Lay out a dict of str to dense tensors (any shape); FormatError names the entry that the format cannot hold.

    ``metadata`` is the caller's own text, stored in the header. With ``checksums`` the header has room for a CRC-32 of
    each tensor, with ``hashes`` also for a SHA-256. It then has metadata in any case, and says ``"format": "pt"`` if
    the caller gave none: accelerate refuses metadata without it. fastio reads such a file as one without metadata.
    """
    if hashes and not checksums:
        raise ValueError(f"{path}: hashes=True needs checksums=True: hashes are stored beside the CRC-32s")
    if not isinstance(obj, dict):
        raise FormatError(f"{path}: expected a dict of tensors for safetensors, got {kind_of(obj)}; save it as .pt")
    for name, tensor in obj.items():
        _check(path, name, tensor)
    _refuse_shared(path, obj)
    laid = header(path, obj, metadata, checksums, hashes)
    builder = LayoutBuilder()
    for name, offset in laid.offsets.items():
        builder.add_tensor(offset, obj[name], name, checksums)
    return builder.build(laid.start, [(0, 0, len(laid.start))], (), laid.size, laid.digests)


class Described(Protocol):
    """A tensor, or what stands for one."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def nbytes(self) -> int: ...


class Header(NamedTuple):
    """How a file of ``size`` bytes begins, and the ``offsets`` in it of tensors that are not empty, which rise.

    ``digests``: where their checksums belong in ``start``.
    """

    start: bytearray
    offsets: dict[str, int]
    size: int
    digests: list[DigestPlace]


def header(
    path: str,
    tensors: Mapping[str, Described],
    metadata: dict[str, str] | None,
    checksums: bool = True,
    hashes: bool = False,
) -> Header:
    """Make the header of a file of tensors, whose names were checked. FormatError for a dtype that the format lacks."""
    names = sorted(tensors)
    entries: dict[str, Any] = {}
    ends = 0
    # The library's order: wide dtypes first, so that every tensor is aligned to its item size.
    for name in sorted(names, key=lambda name: -tensors[name].dtype.itemsize):
        tensor = tensors[name]
        dtype, shape = in_header(path, name, tensor)
        begins, ends = ends, ends + tensor.nbytes
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begins, ends]}
    told = None if metadata is None else checked_metadata(path, metadata)
    if checksums:  # first: this is how places() finds them
        in_order = [entries[name] for name in names]
        stored = names, [entry["dtype"] for entry in in_order], [entry["shape"] for entry in in_order]
        value = header_checksums.reserved(stored, hashes, without_metadata=told is None)
        told = {CHECKSUMS: value, **(ADDED if told is None else told)}
    whole = entries if told is None else {METADATA: told, **entries}
    text = json.dumps(whole, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    if len(text) > LARGEST_HEADER:
        raise FormatError(
            f"{path}: the header would have {exact_size(len(text))}, above the format's {exact_size(LARGEST_HEADER)}"
        )
    start = bytearray(len(text).to_bytes(8, "little") + text)
    offsets = {name: len(start) + entry["data_offsets"][0] for name, entry in entries.items() if tensors[name].nbytes}
    digests = []
    if checksums:
        named = zip(names, header_checksums.places(start, len(names), hashes), strict=True)
        digests = [DigestPlace(name, offsets[name], *place) for name, place in named if name in offsets]
    return Header(start, offsets, len(start) + ends, digests)


def checked_metadata(path: str, metadata: Any) -> dict[str, str]:
    """The metadata without checksums of another file. FormatError for what is no dict of Unicode text."""
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise FormatError(f"{path}: safetensors' metadata: expected a dict of str to str, got {quoted(metadata)}")
    for key, text in metadata.items():
        if not (_is_unicode(key) and _is_unicode(text)):
            raise FormatError(f"{path}: the metadata {quoted(key)}: {quoted(text)} is not Unicode{_SURROGATES}")
    # Metadata that came from another file may have its checksums, which are not those of these tensors.
    return {key: text for key, text in metadata.items() if key != CHECKSUMS}


def check_name(path: str, name: Any) -> None:
    """Raise FormatError for a name that the format cannot hold."""
    if not isinstance(name, str):
        raise FormatError(f"{path}: safetensors names are str, got {quoted(name)} ({type(name).__name__})")
    if not _is_unicode(name):
        raise FormatError(f"{path}: the name {quoted(name)} is not Unicode{_SURROGATES}")
    if name == METADATA:
        raise FormatError(f"{path}: the name {METADATA!r} is the format's own; rename the tensor")


def _check(path: str, name: Any, tensor: Any) -> None:
    check_name(path, name)
    if not isinstance(tensor, torch.Tensor):
        raise FormatError(f"{path}: {quoted(name)} is {kind_of(tensor)}, not a tensor; save it as .pt")
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


def checksums_of(path: str, fd: int, size: int, table: TensorTable) -> TensorChecksums | None:
    """The checksums of a file's tensors: of its sidecar, else of its header, else None.

    Raises as :func:`sidecar.of_sidecar` and :func:`header_checksums.of_header` do.
    """
    return sidecar.of_sidecar(path, fd, size, table) or header_checksums.of_header(path, table)


def source(path: str, fd: int, size: int, keys: tuple[str, ...] | None = None, verify: bool = False) -> Source:
    """Return what to read of a safetensors file: all tensors, or those named ``keys``.

    With ``verify`` also its checksums if it has any. Raises as :func:`tensor_table.read` and :func:`checksums_of` do;
    TensorMissingError for a key that is not there.
    """
    table = tensor_table.read(path, fd, size)
    entries, known = table.entries, checksums_of(path, fd, size, table) if verify else None
    if keys is not None:
        entries = pick(path, dict(entries), keys)
    crcs = dict.fromkeys(entries, 0) if known is None else known.crc32
    regions = {n: Region(n, entry.offset, entry.nbytes, crcs[n]) for n, entry in entries.items()}

    def build(storage_of: StorageOf) -> dict[str, torch.Tensor]:
        return {n: tensor_on(storage_of(regions[n]), entry.dtype, entry.shape) for n, entry in entries.items()}

    filled = sorted((r for r in regions.values() if r.nbytes), key=lambda region: region.offset)
    aligned = all(is_aligned(region.offset, entries[region.name].dtype.itemsize) for region in filled)
    damaged = None if known is None else lambda region: known.mismatch(path, region.name, entries[region.name])
    return Source("safetensors", filled, build, aligned=aligned, damaged=damaged)


def tensor_on(storage: torch.UntypedStorage, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """Return a contiguous tensor at the beginning of a storage, on its device."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
