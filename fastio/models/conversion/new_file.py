"""A file that a conversion makes: its layout over memory that is never touched, and which tensor each extent is of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from fastio import formats
from fastio._native import Mapping as HostMapping
from fastio._native import crc32_combine
from fastio.engine import checksums, header_digests
from fastio.files.atomic_file import AtomicFile
from fastio.formats import dense_tensors
from fastio.formats.detect import PT
from fastio.formats.pt.records import pickled
from fastio.formats.pt.writer import archive_name, lay_out
from fastio.memory.load_buffers import bytes_of
from fastio.models.conversion.source_tensors import SourceTensor
from fastio.models.conversion.tensor_reads import Piece
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent

_ALIGNMENT = 64
_PICKLE_PROTOCOL = 2  # torch.save's


class Chunk(NamedTuple):
    """The bytes of a new file from ``begin`` to ``end``: parts of extents, as (index, first byte, bytes)."""

    begin: int
    end: int
    parts: list[tuple[int, int, int]]


class NewFile:
    """The file at ``path`` with these tensors, laid out as a save of them would be.

    ``content`` maps names to tensors, or, in ``pt`` and ``npy``, is a single one.
    """

    def __init__(
        self, path: str, file_format: str, content: Mapping[str, SourceTensor] | SourceTensor, arguments: dict[str, Any]
    ) -> None:
        self.path = path
        self.format = file_format
        tensors = [content] if isinstance(content, SourceTensor) else content.values()
        distinct = list({tensor.name: tensor for tensor in tensors}.values())
        self.count = len(distinct)
        stand_ins = _StandIns(path, distinct, apart=file_format == PT)
        obj: Any
        if isinstance(content, SourceTensor):
            obj = stand_ins.made[content.name]
        else:
            obj = {name: stand_ins.made[tensor.name] for name, tensor in content.items()}
        if file_format == PT:
            dense_tensors.check_mode(path, file_format)
            with gc_paused():
                self.layout = lay_out(pickled(obj, _PICKLE_PROTOCOL), archive_name(path), read=False)
        else:
            self.layout = formats.lay_out(file_format, obj, path, arguments)
        self._stand_ins = stand_ins
        self.values = [0] * len(self.layout.extents)
        self._patches = iter(self.layout.patches)
        self._patch = next(self._patches, None)

    def chunks(self, nbytes: int) -> Iterator[Chunk]:
        """The file in chunks of ``nbytes``, in order."""
        extents = self.layout.extents
        first = 0
        for begin in range(0, self.layout.size, nbytes):
            end = min(begin + nbytes, self.layout.size)
            parts = []
            for index in range(first, len(extents)):
                offset, size = extents[index][:2]
                if offset >= end:
                    break
                start, stop = max(offset, begin), min(offset + size, end)
                if start < stop:
                    parts.append((index, start - offset, stop - start))
                if offset + size <= end:
                    first = index + 1
            yield Chunk(begin, end, parts)

    def pieces(self, chunk: Chunk, address: int) -> dict[int, Piece]:
        """What is to be read for a chunk that begins at ``address``, by the extents' indices."""
        found = {}
        for index, start, nbytes in chunk.parts:
            extent = self.layout.extents[index]
            if not self._is_literal(extent):
                tensor = self._stand_ins.tensor_at(extent.address)
                found[index] = Piece(tensor, start, nbytes, address + extent.offset + start - chunk.begin)
        return found

    def extents(self, chunk: Chunk, pieces: Mapping[int, Piece], crcs: Sequence[int]) -> list[Extent]:
        """What is to be written for a chunk whose pieces, with these CRC-32s, were read."""
        for (index, piece), crc in zip(pieces.items(), crcs, strict=True):
            self.values[index] = crc32_combine(self.values[index], crc, piece.nbytes)
        patches = []
        while self._patch is not None and self._patch.offset < chunk.end:  # its extent was before it
            patches.append(self._patch)
            self._patch = next(self._patches, None)
        if patches:
            checksums.patch(self.layout._replace(patches=patches), self.values)
        found = []
        for index, start, nbytes in chunk.parts:
            extent = self.layout.extents[index]
            address = pieces[index].address if index in pieces else extent.address + start
            found.append(Extent(extent.offset + start, nbytes, address, False, "cpu", extent.owner, extent.name))
        return found

    def finish(self, new: AtomicFile) -> None:
        """Write the checksums into the header of a file whose tensors were written."""
        layout = self.layout
        if layout.digests:
            crcs = {extent.offset: value for extent, value in zip(layout.extents, self.values, strict=True)}
            header_digests.write_after(layout, crcs, new.path, new.fd)

    def tensor_at(self, offset: int) -> str:
        """The name of the tensor that has the byte of the file; empty for the format's own bytes."""
        offsets = [extent.offset for extent in self.layout.extents]
        extent = self.layout.extents[max(bisect_right(offsets, offset) - 1, 0)]
        return "" if self._is_literal(extent) else self._stand_ins.tensor_at(extent.address).name

    def _is_literal(self, extent: Extent) -> bool:
        """Whether it is of the format's own bytes. Its name does not tell: a tensor's may be empty."""
        return extent.owner is self.layout.literal


class _StandIns:
    """Tensors that are laid out in the place of those of the source: address space without memory.

    ``apart``: each has a storage of its own, as in a ``.pt``, which holds storages.
    """

    def __init__(self, path: str, tensors: Sequence[SourceTensor], apart: bool) -> None:
        filled = [tensor for tensor in tensors if tensor.nbytes]
        starts = list(accumulate((-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in filled), initial=0))
        with translate_native_errors(path):
            nbytes = max(starts.pop(), 1)
            mapping = HostMapping(nbytes)
        one = bytes_of(mapping, 0, nbytes).untyped_storage()
        self.made = {
            tensor.name: torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors if not tensor.nbytes
        }
        for tensor, start in zip(filled, starts, strict=True):
            storage = bytes_of(mapping, start, tensor.nbytes).untyped_storage() if apart else one
            first = 0 if apart else start // tensor.dtype.itemsize
            empty = torch.empty(0, dtype=tensor.dtype)
            self.made[tensor.name] = empty.set_(storage, first, tensor.shape)  # type: ignore[call-overload]
        self._filled = filled
        self._addresses = [mapping.address + start for start in starts]

    def tensor_at(self, address: int) -> SourceTensor:
        return self._filled[bisect_right(self._addresses, address) - 1]
