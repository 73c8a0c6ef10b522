"""What is offloaded: bytes of one storage at one version, and how a saved tensor looks at them. Sizes are bytes."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fastio._native import WeakStorage
from fastio.memory.raw_memory import storage_bytes
from fastio.offload.planning.prefetch import Order
from fastio.offload.stores import fresh_memory

if TYPE_CHECKING:
    from fastio.offload.codecs.encoding import Encoded
    from fastio.offload.report import Event

# Kernels may round differently by an operand's place in a line, which a reload must keep: MKL's by 64 bytes, those of
# CUDA libraries by as much as torch's allocator aligns to there.
_LINES = {"cpu": 64, "cuda": 512}
PAGE = 4096
LINE = _LINES["cpu"]
_CPU = torch.device("cpu")


class State(enum.Enum):
    """Where the bytes of a blob are."""

    RESIDENT = "resident"  # in device memory, nothing under way
    PENDING = "pending"  # in device memory, being written
    DISK = "disk"
    INFLIGHT = "inflight"  # on the way back
    FAILED = "failed"  # lost: they could not be read back


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of a storage that a blob holds."""

    start: int
    nbytes: int

    def covers(self, other: Span) -> bool:
        """Whether the other span lies within this one."""
        return self.start <= other.start and other.start + other.nbytes <= self.start + self.nbytes


@dataclass(frozen=True, slots=True)
class View:
    """How a saved tensor looks at its blob. ``offset`` and ``stride`` count elements from the storage's first byte."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> View:
        """The view that this tensor is."""
        conj, neg = tensor.is_conj(), tensor.is_neg()
        return cls(tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()), conj, neg)

    def touched(self) -> Span:
        """The bytes between the first and the last element; a stride of 0 adds nothing."""
        if 0 in self.shape:
            return Span(self.offset * self.dtype.itemsize, 0)
        last = sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        return Span(self.offset * self.dtype.itemsize, (last + 1) * self.dtype.itemsize)

    def on(self, storage: torch.UntypedStorage, moved: int, akin: torch.Tensor) -> torch.Tensor:
        """The tensor again, on a storage whose bytes lie ``moved`` bytes further than in the one it was saved from.

        With the version counter of the tensor ``akin``.
        """
        found = torch.empty(0, dtype=self.dtype, device=storage.device)
        found.set_(storage, self.offset + moved // self.dtype.itemsize, self.shape, self.stride)
        tensor = akin.detach()
        tensor.data = found
        if self.conj:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.neg else tensor


def span_to_save(view: View, storage_nbytes: int, device: torch.device = _CPU) -> Span:
    """The whole storage, or the view's span alone where the storage is more than twice as large."""
    touched = view.touched()
    if storage_nbytes <= 2 * touched.nbytes:
        return Span(0, storage_nbytes)
    line = _LINES[device.type]
    start = touched.start // line * line
    end = min(storage_nbytes, -(-(touched.start + touched.nbytes) // line) * line)
    return Span(start, end - start)


class Buffer:
    """Memory with a blob's bytes from byte ``start`` of a storage on."""

    __slots__ = ("start", "storage")

    def __init__(self, storage: torch.UntypedStorage, start: int) -> None:
        self.storage = storage
        self.start = start

    @classmethod
    def for_payload(cls, nbytes: int, device: torch.device = _CPU, lead: int = 0) -> Buffer:
        """New memory for bytes that are no tensor's yet; see :meth:`like_source`."""
        return cls.like_source(Span(0, nbytes), nbytes, device, lead)

    @classmethod
    def like_source(cls, span: Span, source_nbytes: int, device: torch.device = _CPU, lead: int = 0) -> Buffer:
        """New memory for a span of a storage of ``source_nbytes``.

        On the CPU the new storage has that size too, and the span at its place: offsets mean what they meant. What lies
        outside of the span is zero, and takes no memory. The span starts ``lead`` bytes into a page, so that direct I/O
        of whole pages needs no bounce. On a GPU the storage is the span alone, as torch aligns it, and on the current
        stream: kernels queued there before may still use it.
        """
        if device.type != "cpu":
            return cls(torch.empty(span.nbytes, dtype=torch.uint8, device=device).untyped_storage(), 0)
        before = max(0, lead - span.start)
        room = before + source_nbytes + 2 * PAGE
        whole = span.nbytes == source_nbytes
        owner = fresh_memory.empty((room,), torch.uint8, device) if whole else fresh_memory.untouched(room, span.nbytes)
        begin = before + (lead - span.start - before - owner.data_ptr()) % PAGE
        # Of the array, not of the tensor: a storage of its own, which keeps the owner's memory alive.
        storage = torch.frombuffer(
            owner.numpy(), dtype=torch.uint8, offset=begin, count=source_nbytes
        ).untyped_storage()
        return cls(storage, span.start)

    @property
    def address(self) -> int:
        """Where the bytes begin."""
        return self.storage.data_ptr() + self.start

    def bytes(self, nbytes: int) -> torch.Tensor:
        """The bytes as a flat tensor of uint8."""
        flat = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        return flat.set_(self.storage, self.start, (nbytes,), (1,))


class SavingPass(Protocol):
    """The forward pass that saved a tensor (:class:`fastio.offload.autograd.forward_pass.ForwardPass`)."""

    number: int
    refused: bool
    blobs: dict[int, SavedTensor]
    order: Order | None

    def used(self, ordinal: int) -> None:
        """Backward needs a saved tensor."""

    def served(self) -> None:
        """Backward has the saved tensor that it needed."""

    def stalled(self, seconds: float) -> None:
        """A pass waited for a transfer."""

    def moved(self, event: Event) -> None:
        """A transfer ended."""

    def forget(self, blob: SavedTensor) -> None:
        """The graph released a saved tensor."""


class HoldingTier(Protocol):
    """The tier that a saved tensor moves to (:class:`fastio.offload.stores.tiers.Tier`)."""

    def cancel(self, blob: SavedTensor) -> None:
        """Drop a write that has not been issued."""

    def fetch(self, blob: SavedTensor) -> None:
        """Begin to read the bytes back."""

    def finish(self, blob: SavedTensor) -> None:
        """Wait until the bytes are back."""

    def unload(self, blob: SavedTensor) -> None:
        """Drop the bytes that were read back."""

    def drop(self, blob: SavedTensor) -> None:
        """Free the bytes."""


class SavedTensor:
    """Bytes to offload. Only its tier changes ``state``."""

    def __init__(
        self,
        step: SavingPass,
        ordinal: int,
        index: int,
        storage: torch.UntypedStorage,
        span: Span,
        witness: torch.Tensor,
    ) -> None:
        self.step = step
        self.ordinal = ordinal  # the how manieth of its step
        self.index = index  # its number at the store: no two blobs of a process share one
        self.span = span
        self.nbytes = span.nbytes
        self.device = storage.device
        self.tier: HoldingTier | None = None  # None until the tensor is moved out
        self.state = State.RESIDENT
        # The weak reference keeps the storage's header (not its bytes), so its _cdata is nobody else's meanwhile.
        self.source = WeakStorage(storage)
        self.source_nbytes = storage.nbytes()
        self.live: torch.UntypedStorage | None = storage  # strong: only while no copy of the bytes is safe elsewhere
        self.encoded: Encoded | None = None  # how the bytes travel, without them; None: as they are
        self.payload: torch.Tensor | None = None  # in the place of ``live`` where they are encoded
        self.tickets: set[Ticket] = set()  # of the handles that graphs still hold
        self.buffer: Buffer | None = None  # strong: bytes that are back, or on the way
        self.lead = 0  # bytes before them that travel with them
        self.sent = 0  # where they were when their write began
        self.stream: torch.cuda.Stream | None = None  # the one that computed them, on a GPU
        self.key = (0, 0, 0)  # storage, counter and version: what makes another saved tensor the same bytes
        # Of the version counter of all that is saved as this blob: without the storage, it still follows it.
        self.witness = witness
        self.version = witness._version
        # Of no bytes, at version 0: what is unpacked shares its counter, and so tells if backward writes to it.
        self.unpacked = torch.empty(0, device="cpu")
        self._handed: tuple[weakref.ref[torch.UntypedStorage], int] | None = None

    @property
    def stored_nbytes(self) -> int:
        """How many bytes travel."""
        return self.nbytes if self.encoded is None else self.encoded.nbytes

    @property
    def held(self) -> bool:
        """Whether the blob itself keeps its bytes in memory because no copy is safe elsewhere."""
        return self.live is not None or self.payload is not None

    @property
    def address(self) -> int:
        """Where the bytes to be written are. Only while they are held."""
        if self.payload is not None:
            return self.payload.data_ptr()
        assert self.live is not None, "a blob without live bytes has no address"
        return self.live.data_ptr() + self.span.start

    def let_go(self) -> None:
        """Drop all bytes in memory."""
        self.live = self.payload = self.buffer = None

    def original(self) -> torch.UntypedStorage | None:
        """The storage the blob was saved from, where somebody else keeps it alive at its size."""
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self.source.cdata)
        return storage if storage is not None and storage.nbytes() == self.source_nbytes else None

    def at_hand(self) -> tuple[torch.UntypedStorage, int] | None:
        """A storage with the bytes, and how far they are moved in it; None where they must be read."""
        if self.live is not None:
            return self.live, 0
        if self.buffer is not None and self.state is State.RESIDENT:
            return self.handing(self.buffer)
        original = self.original()
        if original is not None:
            return original, 0
        if self._handed is not None and (storage := self._handed[0]()) is not None:
            used_on_current_stream(storage)
            return storage, self._handed[1]
        return None

    def handing(self, buffer: Buffer) -> tuple[torch.UntypedStorage, int]:
        """What ``at_hand`` gives of a buffer. While autograd uses it, it can be found again without being kept."""
        self._handed = (weakref.ref(buffer.storage), buffer.start - self.span.start)
        used_on_current_stream(buffer.storage)
        return buffer.storage, self._handed[1]


class Ticket(weakref.ref[Any]):
    """One of the handles through which a graph holds a blob; ``told`` is called with it when the handle is gone."""

    __slots__ = ("blob",)
    blob: SavedTensor

    def __new__(cls, handle: Any, told: Callable[[Any], None], blob: SavedTensor) -> Ticket:
        made = super().__new__(cls, handle, told)
        made.blob = blob
        return made

    def __init__(self, handle: Any, told: Callable[[Any], None], blob: SavedTensor) -> None:
        pass  # that of weakref.ref takes two


def used_on_current_stream(storage: torch.UntypedStorage) -> None:
    """Tell torch's allocator, where it is memory of a GPU: what came back is shared by nodes on other streams."""
    if storage.device.type != "cpu":
        storage_bytes(storage).record_stream(torch.cuda.current_stream(storage.device))
