"""A store for ``fastio.Offload`` that takes the time of a disk: memory, and one channel of so many bytes/s."""

from __future__ import annotations

import ctypes
import time


class ModelledDisk:
    """Keeps the bytes in memory. Each transfer takes its bytes over ``bandwidth``, one after another."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth  # bytes/s
        self._blobs: dict[int, bytes] = {}
        self._done: dict[int, float] = {}  # when each index's last command ends
        self._until = 0.0

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Begin to write the bytes under this index."""
        self._blobs[index] = ctypes.string_at(address, nbytes)
        self._begin(index, nbytes)

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Begin to read the bytes of this index."""
        ctypes.memmove(address, self._blobs[index], nbytes)
        self._begin(index, nbytes)

    def update(self) -> int:
        """Return how many commands are pending."""
        now = time.perf_counter()
        return sum(ends > now for ends in self._done.values())

    def is_done(self, index: int) -> bool:
        """Return whether the index's last command has ended."""
        return self._done.get(index, 0.0) <= time.perf_counter()

    def wait(self, index: int) -> None:
        """Wait for the index's last command."""
        time.sleep(max(0.0, self._done.get(index, 0.0) - time.perf_counter()))

    def free(self, index: int) -> None:
        """Free the bytes of this index."""
        self._blobs.pop(index, None)
        self._done.pop(index, None)

    def close(self) -> None:
        """Free everything."""
        self._blobs.clear()
        self._done.clear()

    def _begin(self, index: int, nbytes: int) -> None:
        self._until = max(self._until, time.perf_counter()) + nbytes / self.bandwidth
        self._done[index] = self._until
