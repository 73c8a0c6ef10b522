"""A store for ``fastio.Offload`` that takes the time of a disk, and the clock that it runs by."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from unittest import mock


class ModelledClock:
    """The processor time of the thread that made it, and its modelled waits. Other work on the machine takes none."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._machine = time.perf_counter
        self._waited = 0.0

    def now(self) -> float:
        """Return the seconds so far; in another thread, those of ``time.perf_counter``."""
        return time.thread_time() + self._waited if threading.get_ident() == self._thread else self._machine()

    def wait_until(self, then: float) -> None:
        """Let the time until then pass."""
        self._waited += max(0.0, then - self.now())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let what runs inside take no time."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._waited -= time.thread_time() - began

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Use it instead of ``time.perf_counter``, in this process."""
        with mock.patch.object(time, "perf_counter", self.now):
            yield


class ModelledDisk:
    """Keeps the bytes in memory. Each transfer takes its bytes over ``bandwidth``, one after another.

    Copying the bytes takes no time of the thread that trains, as with a disk's DMA.
    """

    def __init__(self, bandwidth: float, clock: ModelledClock) -> None:
        self.bandwidth = bandwidth  # bytes/s
        self._clock = clock
        self._stored: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._spare: list[ctypes.Array[ctypes.c_char]] = []  # of tensors that were freed: their pages exist
        self._commands: dict[int, float] = {}  # when each index's last one ends
        self._until = 0.0

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Begin to write the bytes under this index."""
        with self._clock.stopped():
            place = next((i for i, spare in enumerate(self._spare) if len(spare) == nbytes), None)
            stored = ctypes.create_string_buffer(nbytes) if place is None else self._spare.pop(place)
            self._stored[index] = stored
            ctypes.memmove(stored, address, nbytes)
        self._begin(index, nbytes)

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Begin to read the bytes of this index."""
        with self._clock.stopped():
            ctypes.memmove(address, self._stored[index], nbytes)
        self._begin(index, nbytes)

    def update(self) -> int:
        """Return how many commands are pending."""
        return len(self._commands) - len(self.finished(self._commands))

    def finished(self, indices: Iterable[int]) -> list[int]:
        """Return those of these indices whose last command has ended."""
        now = self._clock.now()
        return [index for index in indices if self._commands.get(index, 0.0) <= now]

    def is_done(self, index: int) -> bool:
        """Return whether the index's last command has ended."""
        return bool(self.finished([index]))

    def wait(self, index: int) -> None:
        """Wait for the index's last command."""
        self._clock.wait_until(self._commands.get(index, 0.0))

    def free(self, index: int) -> None:
        """Free the bytes of this index."""
        self._commands.pop(index, None)
        if index in self._stored:
            self._spare.append(self._stored.pop(index))

    def close(self) -> None:
        """Free everything."""
        self._stored.clear()
        self._spare.clear()
        self._commands.clear()

    def _begin(self, index: int, nbytes: int) -> None:
        self._until = max(self._until, self._clock.now()) + nbytes / self.bandwidth
        self._commands[index] = self._until
