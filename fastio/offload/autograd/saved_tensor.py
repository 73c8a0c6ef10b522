"""The bytes of one storage at one version that autograd saved. Sizes are bytes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch

from fastio import devices
from fastio._native import WeakStorage
from fastio.memory.raw_memory import storage_bytes
from fastio.offload.autograd.buffer import Buffer
from fastio.offload.autograd.version_counters import empty_on, witness_of
from fastio.offload.autograd.views import Span, View

if TYPE_CHECKING:
    from fastio.offload.autograd.forward_pass import ForwardPass
    from fastio.offload.codecs.device_numbers import Number
    from fastio.offload.codecs.encoding import Encoded
    from fastio.offload.recompute.recipe import Recipe
    from fastio.offload.recompute.tier import RecomputeTier
    from fastio.offload.stores.disk_tier import DiskTier
    from fastio.offload.stores.host_tier import HostTier


_is_gone: Any = torch.UntypedStorage._expired


class State:
    """Where the bytes of a saved tensor are. No Enum: Python 3.11 takes five times as long to look a member up."""

    RESIDENT: Final = "resident"  # in device memory, no transfer pending
    PENDING: Final = "pending"  # in device memory, being written
    DISK: Final = "disk"  # in the store of a tier
    INFLIGHT: Final = "inflight"  # being read back
    RECOMPUTED: Final = "recomputed"  # nowhere: its recipe makes them again
    FAILED: Final = "failed"  # lost: they could not be read back


class SavedTensor:
    """Bytes to offload. Only its tier changes ``state``.

    Its attributes by stage; those of the later stages have no meaning until then.
    """

    __slots__ = (
        *("step", "ordinal", "index", "key", "version", "witness", "source", "source_nbytes", "span", "nbytes"),
        *("device", "accelerator", "stream", "live", "state", "holds", "kept", "readers"),
        *("tier", "recipe", "view", "encoded", "payload", "stored_nbytes", "computed", "lead", "sent"),
        *("block", "copied"),
        *("buffer", "home", "arrived", "ready"),
        *("damaged", "unpacked", "handed_out"),
    )

    def __init__(
        self,
        step: ForwardPass,
        ordinal: int,
        index: int,
        storage: torch.UntypedStorage,
        source_nbytes: int,
        span: Span,
        witness: torch.Tensor,
        device: torch.device,
        accelerator: devices.Accelerator | None = None,
        stream: devices.Stream | None = None,
        key: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self.step = step
        self.ordinal = ordinal  # index within the forward pass
        self.index = index  # index at the store, unique in the process
        self.key = key  # storage, counter and version: equal keys are equal bytes
        self.version = key[2]
        self.witness = witness  # shares the version counter of the saved tensors without keeping their storage
        # The weak reference keeps the storage's header, not its bytes, so no other storage gets its _cdata.
        self.source = WeakStorage(storage)
        self.source_nbytes = source_nbytes
        self.span = span
        self.nbytes = self.stored_nbytes = span.nbytes  # the second to transfer
        # On a GPU: the stream of the operator that saved the bytes. They are copied and encoded behind it.
        self.device = device
        self.accelerator = accelerator
        self.stream = stream
        self.live: torch.UntypedStorage | None = storage  # strong, while no safe copy exists elsewhere
        self.state: str = State.RESIDENT
        self.holds = 0  # of graphs, and of what is made from these bytes: see fastio._native.Hold
        self.kept = False  # the plan keeps it in memory
        self.readers = 0  # operators that will save it too, before it moves

        # Moved out, by its tier.
        self.tier: DiskTier | HostTier | RecomputeTier | None = None
        self.recipe: Recipe | None = None  # how to compute the bytes again
        self.view: View | None = None  # of the tensor that was saved first, if it is all of its storage
        self.encoded: Encoded | None = None  # codec and sizes, without the payload; None: not encoded
        self.payload: torch.Tensor | None = None  # replaces ``live`` if encoded
        self.block: int | None = None  # the address of the bytes in host memory
        self.copied: devices.Mark | None = None  # on a GPU: the end of the copy to host memory
        self.computed: devices.Event | None = None  # on a GPU: the bytes are there, if that is known

        # Read back.
        self.buffer: Buffer | None = None  # strong: bytes that were read back, or are being read
        self.home: devices.Stream | None = None  # on a GPU: the stream on which the buffer was allocated
        self.arrived: devices.Mark | None = None  # on a GPU: the end of the latest copy back
        self.ready: devices.Mark | None = None  # on a GPU: work that uses the bytes waits for this

        # Used.
        self.damaged: Number | None = None  # on a GPU: not 0 if the payload that was decoded last is damaged
        self.unpacked: torch.Tensor | None = None  # an empty tensor that shares the counter of the unpacked ones
        # The storage that autograd got last, and the shift of the bytes in it. Not a Python weak reference: if only C++
        # keeps the storage, torch 2.6 returns an object that does not keep it, and is empty once C++ has freed it.
        self.handed_out: tuple[WeakStorage, int] | None = None

    # Set by the tiers that use them:
    lead: int  # bytes before the span that are transferred with it
    sent: int  # address of the bytes when their write began

    def tensor(self, view: View, storage: torch.UntypedStorage, moved: int) -> torch.Tensor:
        """Return a saved tensor on a storage in which the bytes lie ``moved`` bytes further than in the original.

        Unpacked tensors share a version counter, which begins at 0, so a write in backward is detected.
        """
        akin, buffer = self.unpacked, self.buffer
        if buffer is not None and buffer.storage is storage and buffer.tensor is not None and view == self.view:
            if akin is None and not (view.conj or view.neg):
                self.unpacked = witness_of(buffer.tensor, lazy=False)
                return buffer.tensor
            elements = buffer.tensor
        else:
            elements = view.on(storage, moved)
        if akin is None:
            akin = self.unpacked = empty_on(self.device).data  # with a counter of its own
        return view.tensor(elements, akin)

    @property
    def was_written(self) -> int:
        """How often backward wrote to the unpacked bytes."""
        return 0 if self.unpacked is None else self.unpacked._version

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

    @property
    def is_whole(self) -> bool:
        """Whether the memory to write from has all bytes. Other code may have resized the storage."""
        return self.live is None or self.live.nbytes() >= self.span.start + self.span.nbytes

    @property
    def is_as_sent(self) -> bool:
        """Whether the memory is still the one that the write began from. Only valid while ``held``.

        torch may have moved the bytes (``share_memory_``), or other code freed them: what was written is unknown then.
        """
        live = self.live
        if live is None:
            return self.address == self.sent
        start, nbytes = self.span
        return live.data_ptr() + start == self.sent and live.nbytes() >= start + nbytes

    def follows(self, other: SavedTensor) -> bool:
        """Whether operators on one stream, or on the CPU, computed both."""
        return self.accelerator is other.accelerator and (self.stream is other.stream or self.stream == other.stream)

    @property
    def was_resized(self) -> bool:
        """Whether other code has another size of the storage now than when it was saved."""
        storage = _alive(self.source)
        return storage is not None and storage.nbytes() != self.source_nbytes

    def free_behind_arrival(self) -> None:
        """Let what reuses the buffer's memory begin after the copy back, which nothing that uses the bytes followed."""
        if self.arrived is not None and self.home is not None:
            self.arrived.precede(self.home)

    def replace_by_payload(self, encoded: Encoded, payload: torch.Tensor) -> None:
        """Hold a codec's payload instead of the live bytes."""
        self.payload = payload
        self.encoded = encoded
        self.stored_nbytes = encoded.nbytes
        self.live = None

    def release_bytes(self) -> None:
        """Drop all bytes in memory."""
        self.live = self.payload = self.buffer = None

    def original(self) -> torch.UntypedStorage | None:
        """Return the storage the tensor was saved from, if other code keeps it alive at its size."""
        storage = _alive(self.source)
        return storage if storage is not None and storage.nbytes() == self.source_nbytes else None

    def in_memory(self) -> tuple[torch.UntypedStorage, int] | None:
        """Return a storage with the bytes and their shift in it; None if they must be read."""
        if self.live is not None:
            self.handed_out = self.source, 0
            return self.live, 0
        if self.buffer is not None and self.state is State.RESIDENT:
            return self.hand_out(self.buffer)
        original = self.original()
        if original is not None:
            return original, 0
        if self.handed_out is not None and (storage := _alive(self.handed_out[0])) is not None:
            shift = self.handed_out[1]
            if self.span.start + self.span.nbytes + shift <= storage.nbytes():  # else other code resized it
                used_on_current_stream(storage, self.ready)
                return storage, shift
        return None

    @property
    def is_in_memory(self) -> bool:
        """Whether :meth:`in_memory` would return a storage."""
        if self.live is not None or self.is_in_use or (self.buffer is not None and self.state is State.RESIDENT):
            return True
        return not _is_gone(self.source.cdata) and self.original() is not None

    @property
    def is_in_use(self) -> bool:
        """Whether autograd still has the storage that was handed out last."""
        return self.handed_out is not None and not _is_gone(self.handed_out[0].cdata)

    def hand_out(self, buffer: Buffer) -> tuple[torch.UntypedStorage, int]:
        """Return a buffer's storage and the shift of the bytes in it.

        A weak reference remembers it, so it is found again while autograd uses it.
        """
        storage = buffer.storage
        shift = buffer.start - self.span.start
        self.handed_out = WeakStorage(storage), shift
        if self.accelerator is not None:
            stream = self.accelerator.current_stream(self.device)
            if self.ready is not None:
                self.ready.precede(stream)
            if self.home is None or stream != self.home:  # torch's streams do not differ from None
                storage_bytes(storage).record_stream(stream)
        return storage, shift


def _alive(reference: WeakStorage) -> torch.UntypedStorage | None:
    """Return a storage; None if it is gone."""
    storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return storage


def under_its_stream(saved: SavedTensor) -> contextlib.AbstractContextManager[Any]:
    """A context in which GPU work follows the operator that saved the bytes, whatever stream is current now."""
    return contextlib.nullcontext() if saved.accelerator is None else saved.accelerator.under(saved.stream)


def used_on_current_stream(storage: torch.UntypedStorage, after: devices.Mark | None = None) -> None:
    """Tell torch's allocator that the current stream uses this GPU memory: operators on several streams share it.

    What is queued next there begins after the mark ``after``.
    """
    accelerator = devices.find(storage.device)
    if accelerator is not None:
        stream = accelerator.current_stream(storage.device)
        if after is not None:
            after.precede(stream)
        storage_bytes(storage).record_stream(stream)
