"""Generated extents over real memory, and the bytes that a file with them must hold."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import strategies as st

from fastio.transports.transport import Extent, Patch, Span

PAGE = 4096
MIB = 1 << 20
GUARD = 64  # bytes on each side of a piece of memory that no transport may change
GUARD_BYTE = 0xA5


class Memory:
    """``nbytes`` of memory on ``device`` whose address is ``misalignment`` modulo 4096, between guard bytes."""

    def __init__(self, nbytes: int, misalignment: int = 0, device: str = "cpu") -> None:
        self.nbytes = nbytes
        self.device = device
        self.tensor = torch.full((nbytes + 2 * PAGE + 2 * GUARD,), GUARD_BYTE, dtype=torch.uint8, device=device)
        base = self.tensor.data_ptr() + GUARD
        self.address = base + (misalignment - base) % PAGE
        self._begin = self.address - self.tensor.data_ptr()

    def put(self, data: npt.NDArray[np.uint8]) -> Memory:
        """Copy ``data`` into it."""
        self.tensor[self._begin : self._begin + self.nbytes] = torch.from_numpy(data).to(self.device)
        return self

    def get(self) -> npt.NDArray[np.uint8]:
        """A copy of its bytes."""
        held: npt.NDArray[np.uint8] = self.tensor[self._begin : self._begin + self.nbytes].cpu().numpy().copy()
        return held

    def check_guards(self) -> None:
        """Fail if a guard byte has changed."""
        whole = self.tensor.cpu().numpy()
        assert (whole[self._begin - GUARD : self._begin] == GUARD_BYTE).all(), "bytes before the memory were changed"
        behind = whole[self._begin + self.nbytes : self._begin + self.nbytes + GUARD]
        assert (behind == GUARD_BYTE).all(), "bytes behind the memory were changed"


@dataclass(frozen=True)
class Run:
    """An extent to be made: it starts ``gap`` bytes after the last one's end, rounded up to ``alignment``.

    The address of its memory is ``misalignment`` modulo 4096.
    """

    gap: int
    nbytes: int
    alignment: int = 1
    misalignment: int = 0
    checksum: bool = True


@dataclass
class Layout:
    """The offsets of runs in a file of ``size`` bytes, behind its first ``start`` bytes.

    ``seed`` decides the content, and which extents hold patches. ``tail`` is the number of bytes behind the last run.
    ``resident``: load from the page cache, save without ``durable``.
    """

    runs: Sequence[Run]
    seed: int = 0
    start: int = 0
    tail: int = 0
    resident: bool = False
    offsets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = []
        at = self.start
        for run in self.runs:
            at += run.gap
            at += -at % run.alignment
            self.offsets.append(at)
            at += run.nbytes
        self.size = at + self.tail

    @property
    def total(self) -> int:
        """Bytes in extents."""
        return sum(run.nbytes for run in self.runs)

    def noise(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Random bytes of this seed."""
        return np.random.default_rng(self.seed).integers(0, 256, nbytes, dtype=np.uint8)

    def place(self, device: str, data: npt.NDArray[np.uint8] | None = None) -> tuple[list[Extent], list[Memory]]:
        """Extents, each over its own memory. With ``data`` the memory is filled with ``data[offset - start:]``.

        With ``data`` and another device than the CPU every third extent is in host memory.
        """
        extents, memories = [], []
        for number, (run, offset) in enumerate(zip(self.runs, self.offsets, strict=True)):
            where = "cpu" if data is not None and number % 3 == 2 else device
            memory = Memory(run.nbytes, run.misalignment, where)
            if data is not None:
                memory.put(data[offset - self.start : offset - self.start + run.nbytes])
            memories.append(memory)
            extents.append(Extent(offset, run.nbytes, memory.address, run.checksum, where, memory, f"run {number}"))
        return extents, memories

    def patches(self, extents: Sequence[Extent]) -> tuple[list[Extent], list[Patch]]:
        """Patches in some extents for earlier ones. An extent with a patch has no checksum of its own."""
        rng = np.random.default_rng(self.seed)
        changed, patches = list(extents), []
        for number, extent in enumerate(extents):
            described = [i for i in range(number) if changed[i].checksum]
            if extent.nbytes < 4 or not described or rng.random() < 0.5:
                continue
            changed[number] = extent._replace(checksum=False)
            for at in range(0, extent.nbytes - 3, max(4, extent.nbytes // 2)):
                patches.append(Patch(extent.offset + at, described[int(rng.integers(len(described)))]))
        return changed, patches

    def image(
        self, extents: Sequence[Extent], memories: Sequence[Memory], patches: Sequence[Patch] = ()
    ) -> npt.NDArray[np.uint8]:
        """The bytes of the file after a save, from ``start`` on."""
        image = np.zeros(self.size - self.start, dtype=np.uint8)
        for extent, memory in zip(extents, memories, strict=True):
            image[extent.offset - self.start : extent.offset - self.start + extent.nbytes] = memory.get()
        for patch in patches:
            value = zlib.crc32(memories[patch.extent].get().tobytes())
            at = patch.offset - self.start
            image[at : at + 4] = np.frombuffer(value.to_bytes(4, "little"), dtype=np.uint8)
        return image

    def mirror(self, device: str) -> tuple[list[Extent], Span, Memory]:
        """Extents in one span of memory, from the page where the first one starts to the end of the last one.

        The span's memory extends to the end of its last page.
        """
        begin = min(self.offsets) // PAGE * PAGE
        end = max(offset + run.nbytes for run, offset in zip(self.runs, self.offsets, strict=True))
        memory = Memory(end - begin + (begin - end) % PAGE, device=device)
        extents = [
            Extent(offset, run.nbytes, memory.address + offset - begin, run.checksum, device, memory, f"run {number}")
            for number, (run, offset) in enumerate(zip(self.runs, self.offsets, strict=True))
        ]
        return extents, Span(begin, end - begin, memory.address), memory


_EDGES = [0, 1, 3, 4, 511, 512, 513, PAGE - 1, PAGE, PAGE + 1, MIB - 1, MIB, MIB + 1, 3 * MIB]
_sizes = st.one_of(st.sampled_from(_EDGES), st.integers(0, 3 * MIB))
_misalignments = st.one_of(st.just(0), st.sampled_from([1, 16, 64, 512, PAGE - 1]))
_alignments = st.sampled_from([1, 64, PAGE])

_large = st.lists(
    st.builds(Run, st.sampled_from([0, 0, 1, 100, PAGE, MIB]), _sizes, _alignments, _misalignments, st.booleans()),
    min_size=1,
    max_size=4,
)
_tiny = st.lists(
    st.builds(Run, st.integers(0, 20), st.integers(0, 70), st.sampled_from([1, 1, 8]), st.just(0), st.booleans()),
    min_size=1,
    max_size=200,
)


def layouts(start: int = 0) -> st.SearchStrategy[Layout]:
    """A strategy: a few extents of up to 3 MiB, many tiny ones, or both."""
    return st.builds(
        Layout,
        st.one_of(_large, _tiny, st.tuples(_tiny, _large).map(lambda two: [*two[0], *two[1]])),
        seed=st.integers(0, 2**32 - 1),
        start=st.just(start),
        tail=st.sampled_from([0, 1, 5000]),
        resident=st.booleans(),
    )
