"""The bytes of one storage at one version that autograd saved, and the views of them. Sizes are bytes."""

from __future__ import annotations

import contextlib
import enum
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fastio import devices
from fastio._native import WeakStorage
from fastio.memory.raw_memory import storage_bytes
from fastio.offload.planning.prefetch import Order
from fastio.offload.stores import fresh_memory

if TYPE_CHECKING:
    from fastio.offload.codecs.encoding import Encoded
    from fastio.offload.report import Event

# Kernels may round differently by an operand's offset within a line, so a reload keeps that offset: 64 bytes for MKL;
# for CUDA libraries the alignment of torch's allocator.
_HOST_LINE, _DEVICE_LINE = 64, 512
PAGE = 4096
LINE = _HOST_LINE
_CPU = torch.device("cpu")


class State(enum.Enum):
    """Where the bytes of a saved tensor are."""

    RESIDENT = "resident"  # in device memory, no transfer pending
    PENDING = "pending"  # in device memory, being written
    DISK = "disk"  # in the store of a tier
    INFLIGHT = "inflight"  # being read back
    FAILED = "failed"  # lost: they could not be read back


@dataclass(frozen=True, slots=True)
class Span:
    """The byte range of a storage that a SavedTensor holds."""

    start: int
    nbytes: int

    def covers(self, other: Span) -> bool:
        """Return whether the other span lies within this one."""
        return self.start <= other.start and other.start + other.nbytes <= self.start + self.nbytes


@dataclass(frozen=True, slots=True)
class View:
    """The view of a storage that a tensor is.

    ``offset`` and ``stride`` count elements, ``offset`` from the first byte of the storage.
    """

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> View:
        """Return the view of this tensor."""
        conj, neg = tensor.is_conj(), tensor.is_neg()
        return cls(tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()), conj, neg)

    def touched(self) -> Span:
        """Return the span from the first to the last element; a stride of 0 adds nothing."""
        if 0 in self.shape:
            return Span(self.offset * self.dtype.itemsize, 0)
        last = sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        return Span(self.offset * self.dtype.itemsize, (last + 1) * self.dtype.itemsize)

    def on(self, storage: torch.UntypedStorage, moved: int, akin: torch.Tensor) -> torch.Tensor:
        """Return the tensor on a storage in which its bytes lie ``moved`` bytes further than in the original storage.

        It gets the version counter of the tensor ``akin``.
        """
        found = torch.empty(0, dtype=self.dtype, device=storage.device)
        found.set_(storage, self.offset + moved // self.dtype.itemsize, self.shape, self.stride)
        tensor = akin.detach()
        tensor.data = found
        if self.conj:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.neg else tensor


def span_to_save(view: View, storage_nbytes: int, device: torch.device = _CPU) -> Span:
    """Return the whole storage, or only the view's span if the storage is more than twice as large."""
    touched = view.touched()
    if storage_nbytes <= 2 * touched.nbytes:
        return Span(0, storage_nbytes)
    line = _HOST_LINE if device.type == "cpu" else _DEVICE_LINE
    start = touched.start // line * line
    end = min(storage_nbytes, -(-(touched.start + touched.nbytes) // line) * line)
    return Span(start, end - start)


class Buffer:
    """Memory that holds a saved tensor's bytes, which begin at byte ``start`` of ``storage``."""

    __slots__ = ("start", "storage")

    def __init__(self, storage: torch.UntypedStorage, start: int) -> None:
        self.storage = storage
        self.start = start

    @classmethod
    def for_payload(cls, nbytes: int, device: torch.device = _CPU, lead: int = 0) -> Buffer:
        """Allocate memory for encoded bytes; see :meth:`like_source`."""
        return cls.like_source(Span(0, nbytes), nbytes, device, lead)

    @classmethod
    def like_source(cls, span: Span, source_nbytes: int, device: torch.device = _CPU, lead: int = 0) -> Buffer:
        """Allocate memory for a span of a storage of ``source_nbytes``.

        On the CPU the new storage has the size of the source and the span at the same place, so offsets stay valid.
        Bytes outside the span are zero and take no memory. The span starts ``lead`` bytes into a page, so that direct
        I/O of whole pages needs no bounce buffer. On a GPU the storage is the span alone, aligned by torch and
        allocated on the current stream: kernels queued there before may still use the memory.
        """
        if device.type != "cpu":
            return cls(torch.empty(span.nbytes, dtype=torch.uint8, device=device).untyped_storage(), 0)
        before = max(0, lead - span.start)
        room = before + source_nbytes + 2 * PAGE
        if span.nbytes == source_nbytes:
            owner = fresh_memory.empty((room,), torch.uint8, device)
        else:
            owner = fresh_memory.untouched(room, before + span.start - lead, lead + span.nbytes)
        begin = before + (lead - span.start - before - owner.data_ptr()) % PAGE
        # From the array, not the tensor: this makes a separate storage that keeps the owner's memory alive.
        storage = torch.frombuffer(
            owner.numpy(), dtype=torch.uint8, offset=begin, count=source_nbytes
        ).untyped_storage()
        return cls(storage, span.start)

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self.storage.data_ptr() + self.start

    def bytes(self, nbytes: int) -> torch.Tensor:
        """Return the bytes as a flat uint8 tensor."""
        flat = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        return flat.set_(self.storage, self.start, (nbytes,), (1,))


class SavingPass(Protocol):
    """The forward pass that saved a tensor (:class:`fastio.offload.autograd.forward_pass.ForwardPass`)."""

    number: int
    refused: bool
    saved_tensors: dict[int, SavedTensor]
    kept_nbytes: int
    order: Order | None

    def record_use(self, ordinal: int) -> None:
        """Backward needs a saved tensor."""

    def record_served(self) -> None:
        """Backward has the saved tensor that it needed."""

    def record_stall(self, seconds: float) -> None:
        """A pass waited for a transfer."""

    def record_transfer(self, event: Event) -> None:
        """A transfer ended."""

    def forget(self, saved: SavedTensor) -> None:
        """The graph released a saved tensor."""


class HoldingTier(Protocol):
    """The tier that a saved tensor moves to (:class:`fastio.offload.stores.tiers.Tier`)."""

    def cancel(self, saved: SavedTensor) -> None:
        """Drop a write that has not been issued."""

    def fetch(self, saved: SavedTensor) -> None:
        """Begin to read the bytes back."""

    def finish(self, saved: SavedTensor) -> None:
        """Wait until the bytes are back."""

    def unload(self, saved: SavedTensor) -> None:
        """Drop the bytes that were read back."""

    def drop(self, saved: SavedTensor) -> None:
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
        self.ordinal = ordinal  # index within the forward pass
        self.index = index  # index at the store, unique in the process
        self.span = span
        self.nbytes = span.nbytes
        self.device = storage.device
        self.tier: HoldingTier | None = None  # None until the tensor is moved out
        self.kept = False  # the plan keeps it in memory
        self.state = State.RESIDENT
        # The weak reference keeps the storage's header, not its bytes, so no other storage gets its _cdata.
        self.source = WeakStorage(storage)
        self.source_nbytes = storage.nbytes()
        self.live: torch.UntypedStorage | None = storage  # strong, while no safe copy exists elsewhere
        self.encoded: Encoded | None = None  # codec and sizes, without the payload; None: not encoded
        self.payload: torch.Tensor | None = None  # replaces ``live`` if encoded
        self.handles: set[HandleRef] = set()  # that graphs still hold
        self.buffer: Buffer | None = None  # strong: bytes that were read back, or are being read
        self.lead = 0  # bytes before the span that are transferred with it
        self.sent = 0  # address of the bytes when their write began
        accelerator = devices.find(self.device)
        # On a GPU: the stream of the operator that saved the bytes. They are copied and encoded behind it.
        self.stream: devices.Stream | None = None if accelerator is None else accelerator.current_stream(self.device)
        self.coded: devices.Event | None = None  # on a GPU: the end of its latest encoding or decoding
        self.computed: devices.Event | None = None  # on a GPU: the bytes to write are there
        self.key = (0, 0, 0)  # storage, counter and version: equal keys are equal bytes
        # Shares the version counter of the saved tensors without keeping their storage.
        self.witness = witness
        self.version = witness._version
        # Empty, at version 0. Unpacked tensors share its counter, so a write in backward is detected.
        self.unpacked = torch.empty(0, device=witness.device)
        self._handed_out: tuple[weakref.ref[torch.UntypedStorage], int] | None = None

    @property
    def stored_nbytes(self) -> int:
        """The number of bytes to transfer."""
        return self.nbytes if self.encoded is None else self.encoded.nbytes

    @property
    def held(self) -> bool:
        """Whether this object keeps the bytes in memory because no safe copy exists elsewhere."""
        return self.live is not None or self.payload is not None

    @property
    def address(self) -> int:
        """The address of the bytes to write. Only valid while ``held``."""
        if self.payload is not None:
            return self.payload.data_ptr()
        assert self.live is not None, "a saved tensor without live bytes has no address"
        return self.live.data_ptr() + self.span.start

    def release_bytes(self) -> None:
        """Drop all bytes in memory."""
        self.live = self.payload = self.buffer = None

    def original(self) -> torch.UntypedStorage | None:
        """Return the storage the tensor was saved from, if other code keeps it alive at its size."""
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self.source.cdata)
        return storage if storage is not None and storage.nbytes() == self.source_nbytes else None

    def in_memory(self) -> tuple[torch.UntypedStorage, int] | None:
        """Return a storage with the bytes and their shift in it; None if they must be read."""
        if self.live is not None:
            self._handed_out = (weakref.ref(self.live), 0)
            return self.live, 0
        if self.buffer is not None and self.state is State.RESIDENT:
            return self.hand_out(self.buffer)
        original = self.original()
        if original is not None:
            return original, 0
        if self._handed_out is not None and (storage := self._handed_out[0]()) is not None:
            used_on_current_stream(storage, self.coded)
            return storage, self._handed_out[1]
        return None

    @property
    def is_in_use(self) -> bool:
        """Whether autograd still has the storage that was handed out last."""
        return self._handed_out is not None and self._handed_out[0]() is not None

    def hand_out(self, buffer: Buffer) -> tuple[torch.UntypedStorage, int]:
        """Return a buffer's storage and the shift of the bytes in it.

        A weak reference remembers it, so it is found again while autograd uses it.
        """
        self._handed_out = (weakref.ref(buffer.storage), buffer.start - self.span.start)
        used_on_current_stream(buffer.storage, self.coded)
        return buffer.storage, self._handed_out[1]


class HandleRef(weakref.ref[Any]):
    """A weak reference to a handle that a graph holds; calls ``callback`` when the handle is gone."""

    __slots__ = ("saved",)
    saved: SavedTensor

    def __new__(cls, handle: Any, callback: Callable[[Any], None], saved: SavedTensor) -> HandleRef:
        made = super().__new__(cls, handle, callback)
        made.saved = saved
        return made

    def __init__(self, handle: Any, callback: Callable[[Any], None], saved: SavedTensor) -> None:
        pass  # weakref.ref.__init__ takes only two arguments


def under_its_stream(saved: SavedTensor) -> contextlib.AbstractContextManager[Any]:
    """A context in which GPU work follows the operator that saved the bytes, whatever stream is current now."""
    accelerator = devices.find(saved.device)
    return contextlib.nullcontext() if accelerator is None else accelerator.under(saved.stream)


def used_on_current_stream(storage: torch.UntypedStorage, after: devices.Event | None = None) -> None:
    """Tell torch's allocator that the current stream uses this GPU memory: operators on several streams share it.

    The stream waits for the event ``after``.
    """
    accelerator = devices.find(storage.device)
    if accelerator is not None:
        stream = accelerator.current_stream(storage.device)
        if after is not None:
            stream.wait_event(after)
        storage_bytes(storage).record_stream(stream)
