"""Which parts of tensors are read, and which of them together by one transfer. Pure: nothing is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastio.formats.safetensors.entries import Entry
from fastio.models.selection import Selection, blocks, whole
from fastio.models.weight_files import WeightFile

# The most bytes of one transfer, and of the buffer that rows are read into; a larger tensor is read alone.
BATCH_BYTES = 32 << 20


class Part(NamedTuple):
    """A tensor of a file, or what a selection is of it: one with strides is read whole. None: all of it."""

    file: WeightFile
    name: str
    entry: Entry
    selection: Selection | None = None

    def selected(self, selection: Selection) -> Part:
        """What a selection is of a whole tensor."""
        return self if selection == whole(self.entry.shape) else self._replace(selection=selection)

    @property
    def elements(self) -> Selection:
        """The selection, also of a whole tensor."""
        return whole(self.entry.shape) if self.selection is None else self.selection

    @property
    def shape(self) -> list[int]:
        """The shape of the part."""
        return self.entry.shape if self.selection is None else list(self.selection.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the part in memory."""
        return self.entry.nbytes if self.selection is None else self.selection.numel * self.entry.dtype.itemsize

    @property
    def crc(self) -> int | None:
        """The CRC-32 of the part's bytes; None if the file has none, as of a part of a tensor."""
        return self.file.crc(self.name) if self.selection is None else None

    @property
    def is_run(self) -> bool:
        """Whether it is one run of bytes in the file."""
        return self.selection is None or self.nbytes == 0 or self.selection.is_contiguous

    @property
    def is_read_in_place(self) -> bool:
        """Whether each run of its bytes is read straight to where it belongs in memory."""
        return self.is_run or not blocks(self.elements, self.entry.dtype.itemsize).inner

    @property
    def offset(self) -> int:
        """Where it begins in the file."""
        start = 0 if self.selection is None else self.selection.start
        return self.entry.offset + start * self.entry.dtype.itemsize

    @property
    def end(self) -> int:
        """Where its last byte ends in the file."""
        return self.offset + (self.nbytes if self.is_run else self.elements.extent * self.entry.dtype.itemsize)


class Batch(NamedTuple):
    """Parts that one transfer reads: of one file, sorted and apart; or a single part that is read in blocks.

    ``indices`` are the parts' places in the list that the batches were made of.
    """

    parts: list[Part]
    indices: list[int]

    @property
    def nbytes(self) -> int:
        """The bytes of the parts in memory."""
        return sum(part.nbytes for part in self.parts)


def batches(
    parts: Sequence[Part], most: int = BATCH_BYTES, first: int = BATCH_BYTES, runs_only: bool = False
) -> list[Batch]:
    """Group parts by file and offset into batches of at most ``most`` bytes; a larger part is a batch of its own.

    The first batch has at most ``first`` bytes, and each further one four times as many as the one before. With
    ``runs_only``, a part of several runs is a batch of its own. The files stay in the order in which they first occur.
    """
    order = {file: number for number, file in enumerate(dict.fromkeys(part.file for part in parts))}
    offsets = [part.offset for part in parts]  # each property once: a model may have ten thousand tensors
    found: list[Batch] = []
    limit, held, end, joinable = min(first, most), 0, 0, False
    for index in sorted(range(len(parts)), key=lambda index: (order[parts[index].file], offsets[index])):
        part = parts[index]
        nbytes, is_run = part.nbytes, part.is_run
        joins = joinable and found[-1].parts[-1].file is part.file and offsets[index] >= end
        joinable = is_run or (not runs_only and part.is_read_in_place)
        if joins and joinable and held + nbytes <= limit:
            found[-1].parts.append(part)
            found[-1].indices.append(index)
            held += nbytes
        else:
            limit = min(4 * limit, most) if found else limit
            found.append(Batch([part], [index]))
            held = nbytes
        end = offsets[index] + nbytes if is_run else part.end
    return found
