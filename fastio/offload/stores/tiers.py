"""What the tiers share: the store's interface, errors, what is loaded, and the record of transfers. Sizes are bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from fastio.errors import FastIOError
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.autograd.trace import DISK
from fastio.offload.codecs.saved_tensor_encoding import unpack
from fastio.offload.report import Counts, Traffic

STORE_ERRORS = (FastIOError, OSError)  # what a store raises; anything else is a bug


class Store(Protocol):
    """What a tier needs of a store. ``write`` and ``read`` return at once; memory must live until ``is_done``.

    A store with a method ``finished(indices)`` is asked by it for all pending commands at once: it updates, and returns
    those of the indices without one, also those whose command failed; it raises none of their errors.

    A store with a true attribute ``whole_pages`` prefers memory that begins on a page of 4096 bytes, and allows other
    data on that page to change during a transfer.

    A store with a method ``require_device(device)`` is asked by it before the first tensor of a kind of device moves:
    ToolUnavailableError refuses that device.
    """

    def write(self, index: int, address: int, nbytes: int) -> Any:
        """Begin to write the bytes under this index."""

    def read(self, index: int, address: int, nbytes: int) -> Any:
        """Begin to read the bytes of this index."""

    def update(self) -> int:
        """Submit and reap commands; return how many are still pending."""

    def is_done(self, index: int) -> bool:
        """Return whether the index's last command ended. Raises its error."""

    def wait(self, index: int) -> Any:
        """Wait for the index's last command. Raises its error."""

    def free(self, index: int) -> Any:
        """Free the bytes of this index. A LookupError says that there are none, as after an interrupted write."""

    def close(self) -> Any:
        """Release all resources."""


class ActivationLostError(FastIOError, RuntimeError):
    """A saved tensor's bytes could not be read back. Raised before the gradients of its node change."""


class Loaded:
    """Saved tensors that were written and are still in memory, were read, or are being read; the oldest first."""

    def __init__(self) -> None:
        self.tensors: dict[int, SavedTensor] = {}  # by index
        self.nbytes = 0

    def add(self, *several: SavedTensor) -> None:
        tensors = self.tensors
        for saved in several:
            if saved.index not in tensors:
                tensors[saved.index] = saved
                self.nbytes += saved.nbytes

    def discard(self, saved: SavedTensor) -> None:
        if self.tensors.pop(saved.index, None) is not None:
            self.nbytes -= saved.nbytes

    def recount(self) -> None:
        """Count the bytes anew: an interrupt may have come between two lines of the methods above."""
        self.nbytes = sum(saved.nbytes for saved in self)

    def __contains__(self, saved: SavedTensor) -> bool:
        return saved.index in self.tensors

    def __iter__(self) -> Iterator[SavedTensor]:
        return iter(list(self.tensors.values()))


class Tier:
    """A place that saved tensors move to. Not thread-safe: the manager holds its lock around every call.

    Only a tier changes a saved tensor's ``state``. Once copied, a tensor is in ``loaded``, as is one that is read back:
    both stay in memory until ``unload``.
    """

    name: str  # DISK or HOST

    def __init__(self, counts: Counts, loaded: Loaded) -> None:
        self._counts = counts
        self._loaded = loaded
        self._traffic = counts.traffic.setdefault(self.name, Traffic())
        self._warned: set[tuple[type[Exception], int | None]] = set()  # errors of writes, by kind

    def _record(
        self, op: Literal["write", "read"], several: Sequence[SavedTensor], began: float, now: float, stalled: float
    ) -> None:
        """Count transfers of one pass that ended, and for which compute waited ``stalled`` seconds."""
        step, counts, traffic, name = several[0].step, self._counts, self._traffic, self.name
        number = step.number
        sizes = tuple([saved.stored_nbytes for saved in several])
        counts.transfers.append((op, number, tuple([saved.ordinal for saved in several]), sizes, began, now, name))
        nbytes = sum(sizes)
        if op == "write":
            traffic.written_bytes += nbytes
            traffic.writes += len(several)
            counts.stalled_write_s += stalled
        else:
            traffic.read_bytes += nbytes
            traffic.reads += len(several)
            counts.stalled_read_s += stalled
        step.record_stall(stalled)
        if name == DISK:
            step.record_transfer(op, nbytes, began, now)
        elif several[0].accelerator is None:  # the host does not see the end of a copy from a device
            step.record_transfer(f"host {op}", nbytes, began, now)

    def _decode(self, saved: SavedTensor) -> None:
        if saved.encoded is not None:
            assert saved.buffer is not None, "fetch gave it one"
            saved.buffer = unpack(saved, saved.buffer.bytes(saved.stored_nbytes))

    def _refuse(self, saved: SavedTensor, error: Exception) -> None:
        """Keep a tensor whose write failed, and all later tensors of its pass."""
        saved.state = State.RESIDENT
        self._counts.refused += 1
        saved.step.refused = True
        kind = type(error), getattr(error, "errno", None)
        if kind not in self._warned:  # the text names places, which differ in each pass
            self._warned.add(kind)
            warnings.warn(
                f"activations stay in memory for the rest of this forward pass, and of those to come that find the "
                f"same: the store failed ({error}). Gradients are not affected. Make room there, or use another store",
                RuntimeWarning,
                stacklevel=2,
            )

    def _lost(self, saved: SavedTensor, first: Exception, second: Exception) -> ActivationLostError:
        """Give a tensor up; return the error to raise."""
        saved.state = State.FAILED
        return ActivationLostError(
            f"saved tensor {saved.ordinal} of forward pass {saved.step.number} ({saved.nbytes} bytes from byte "
            f"{saved.span.start} of its storage, number {saved.index} at the store) could not be read back: "
            f"{second}; the first try said: {first}. The gradients of this step are incomplete: "
            f"discard them (optimizer.zero_grad) and repair the store before a new Offload is made"
        )
