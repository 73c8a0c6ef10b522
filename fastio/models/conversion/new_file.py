"""A file that a conversion makes: where its own bytes and those of the source's tensors lie in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from fastio import formats
from fastio._native import Mapping as HostMapping
from fastio._native import crc32_combine
from fastio.engine import header_digests
from fastio.files.atomic_file import AtomicFile
from fastio.formats import dense_tensors
from fastio.formats.detect import PT, SAFETENSORS
from fastio.formats.layout import Layout, LayoutBuilder, address_of
from fastio.formats.pt.records import pickled
from fastio.formats.pt.writer import archive_name, lay_out
from fastio.formats.safetensors import format as safetensors_format
from fastio.memory.load_buffers import bytes_of
from fastio.memory.raw_memory import view
from fastio.models.conversion.source_tensors import Run, SourceTensor
from fastio.runtime.native_errors import translate_native_errors

_ALIGNMENT = 64
_PICKLE_PROTOCOL = 2  # torch.save's


Placed = list[tuple[int, SourceTensor]]
"""The tensors that are not empty, with their offsets in the file, which rise."""


class Part(NamedTuple):
    """Bytes of the file from ``offset`` on: a run of the source, or all of a tensor whose elements must be packed."""

    offset: int
    nbytes: int
    run: Run | None
    tensor: SourceTensor


class Piece(NamedTuple):
    """``nbytes`` bytes of a part from its byte ``start`` on, wanted at ``address``."""

    part: Part
    start: int
    nbytes: int
    address: int


class NewFile:
    """The file at ``path`` with these tensors, laid out as a save of them would be.

    ``content`` maps names to tensors, or, in ``pt`` and ``npy``, is a single one. ``metadata`` are for safetensors.
    """

    def __init__(
        self,
        path: str,
        file_format: str,
        content: Mapping[str, SourceTensor] | SourceTensor,
        metadata: dict[str, str] | None = None,
    ) -> None:
        self.path = path
        self.format = file_format
        dense_tensors.check_mode(path, file_format)
        if file_format == SAFETENSORS and not isinstance(content, SourceTensor):
            self._layout, placed = _with_header(path, content, metadata)
        else:
            self._layout, placed = _with_stand_ins(path, file_format, content)
        self.size, self.count = self._layout.size, len(placed)
        self.nbytes = sum(tensor.nbytes for _, tensor in placed)
        self.is_verified = bool(self._layout.patches or self._layout.digests)
        # The format's own bytes: offsets in the file, and where they lie in the layout's literal.
        runs = [extent for extent in self._layout.extents if extent.owner is self._layout.literal]
        base = address_of(self._layout.literal)
        self._literals = [(extent.offset, extent.address - base, extent.nbytes) for extent in runs]
        self._literal_offsets = [extent.offset for extent in runs]
        self._parts = list(_parts(placed))
        self._offsets = [part.offset for part in self._parts]
        self._crcs = {offset: 0 for offset, _ in placed}
        self._tensor = self._run_crc = 0
        # The CRC-32 of the tensor at an offset belongs at each of these places in the file.
        self._patches = [(place, self._layout.extents[index].offset) for place, index in self._layout.patches]
        self._patched = 0

    def pieces(self, begin: int, end: int, address: int) -> list[Piece]:
        """What is to be read for the bytes from ``begin`` to ``end``, which are wanted at ``address``."""
        first = max(bisect_right(self._offsets, begin) - 1, 0)
        found = []
        for part in self._parts[first : bisect_left(self._offsets, end)]:
            start, stop = max(begin - part.offset, 0), min(end - part.offset, part.nbytes)
            if start < stop:
                found.append(Piece(part, start, stop - start, address + part.offset + start - begin))
        return found

    def take(self, pieces: Sequence[Piece], crcs: Sequence[int]) -> None:
        """Compare pieces that were read with the source's checksums. Each piece of a part follows the one before it."""
        for piece, crc in zip(pieces, crcs, strict=True):
            part = piece.part
            value = crc if not piece.start else crc32_combine(self._run_crc, crc, piece.nbytes)
            self._run_crc = value
            if piece.start + piece.nbytes < part.nbytes:
                continue
            if part.run is not None:
                part.run.compare(value)
            if part.offset in self._crcs:
                self._tensor = part.offset
                self._crcs[part.offset] = value
            else:
                before = self._crcs[self._tensor]
                self._crcs[self._tensor] = crc32_combine(before, value, part.nbytes)

    def fill_literals(self, begin: int, end: int, address: int) -> None:
        """Write the format's own bytes, with the checksums of the tensors before them, to the memory of a chunk."""
        literal = self._layout.literal
        while self._patched < len(self._patches) and self._patches[self._patched][0] < end:
            place, tensor = self._patches[self._patched]
            offset, start, _ = self._literals[bisect_right(self._literal_offsets, place) - 1]
            at = start + place - offset
            literal[at : at + 4] = self._crcs[tensor].to_bytes(4, "little")
            self._patched += 1
        first = max(bisect_right(self._literal_offsets, begin) - 1, 0)
        target = view(address, end - begin)
        for offset, start, nbytes in self._literals[first : bisect_left(self._literal_offsets, end)]:
            skipped = max(begin - offset, 0)
            if skipped < nbytes:
                stop = min(end, offset + nbytes)
                target[offset + skipped - begin : stop - begin] = literal[start + skipped : start + stop - offset]

    def finish(self, new: AtomicFile) -> None:
        """Write the checksums into the header of a file whose tensors were written."""
        if self._layout.digests:
            header_digests.write_after(self._layout, self._crcs, new.path, new.fd)

    def tensor_at(self, offset: int) -> str:
        """The name of the tensor that has the byte of the file; empty for the format's own bytes."""
        index = bisect_right(self._offsets, offset) - 1
        part = self._parts[index] if index >= 0 else None
        return "" if part is None or offset >= part.offset + part.nbytes else part.tensor.name


def _parts(placed: Placed) -> Iterator[Part]:
    for offset, tensor in placed:
        if tensor.packed is not None:
            yield Part(offset, tensor.nbytes, None, tensor)
            continue
        for run in tensor.runs:
            yield Part(offset, run.nbytes, run, tensor)
            offset += run.nbytes


def _with_header(
    path: str, content: Mapping[str, SourceTensor], metadata: dict[str, str] | None
) -> tuple[Layout, Placed]:
    """Lay out a file of safetensors."""
    for name in content:
        safetensors_format.check_name(path, name)
    header = safetensors_format.header(path, content, metadata)
    runs = [(0, 0, len(header.start))]
    layout = LayoutBuilder().build(header.start, runs, (), header.size, header.digests)
    return layout, [(offset, content[name]) for name, offset in header.offsets.items()]


def _with_stand_ins(
    path: str, file_format: str, content: Mapping[str, SourceTensor] | SourceTensor
) -> tuple[Layout, Placed]:
    """Lay out a file as of tensors in memory that is never touched; each has a storage of its own."""
    tensors = [content] if isinstance(content, SourceTensor) else content.values()
    distinct = {tensor.name: tensor for tensor in tensors}
    ends = list(accumulate((-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in distinct.values()), initial=0))
    with translate_native_errors(path):
        mapping = HostMapping(max(ends[-1], 1))
    made = {
        name: _stand_in(mapping, start, tensor) for start, (name, tensor) in zip(ends, distinct.items(), strict=False)
    }
    obj: Any
    if isinstance(content, SourceTensor):
        obj = made[content.name]
    else:
        obj = {name: made[tensor.name] for name, tensor in content.items()}
    if file_format == PT:
        layout = lay_out(pickled(obj, _PICKLE_PROTOCOL), archive_name(path), read=False)
    else:
        layout = formats.lay_out(file_format, obj, path, {})
    offsets = [extent.offset for extent in layout.extents if extent.owner is not layout.literal]
    filled = [tensor for tensor in distinct.values() if tensor.nbytes]  # in the order of their first names, as pickled
    return layout, list(zip(offsets, filled, strict=True))


def _stand_in(mapping: HostMapping, start: int, tensor: SourceTensor) -> torch.Tensor:
    if not tensor.nbytes:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    storage = bytes_of(mapping, start, tensor.nbytes).untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape)  # type: ignore[call-overload,no-any-return]
