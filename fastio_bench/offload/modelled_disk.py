"""A store for ``fastio.Offload`` that takes the time of a disk: memory, and one channel of so many bytes/s."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Iterable

_POLL_S = 0.0005  # waking the copying thread would take longer, of the thread that trains


class ModelledDisk:
    """Keeps the bytes in memory. Each transfer takes its bytes over ``bandwidth``, one after another.

    A thread of its own copies the bytes, as a disk's DMA does: that takes no time of the thread that trains.
    """

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth  # bytes/s
        self._stored: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._spare: list[ctypes.Array[ctypes.c_char]] = []  # of tensors that were freed: their pages exist
        self._commands: dict[int, float] = {}  # when each index's last one ends
        self._copies: deque[tuple[int, int, int, int]] = deque()  # index, target, source and bytes; the first is made
        self._until = 0.0
        self._is_open = True
        threading.Thread(target=self._copy, name="modelled-disk", daemon=True).start()

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Begin to write the bytes under this index."""
        place = next((i for i, spare in enumerate(self._spare) if len(spare) == nbytes), None)
        stored = ctypes.create_string_buffer(nbytes) if place is None else self._spare.pop(place)
        self._stored[index] = stored
        self._begin(index, ctypes.addressof(stored), address, nbytes)

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Begin to read the bytes of this index."""
        self._begin(index, address, ctypes.addressof(self._stored[index]), nbytes)

    def update(self) -> int:
        """Return how many commands are pending."""
        return len(self._commands) - len(self.finished(self._commands))

    def finished(self, indices: Iterable[int]) -> list[int]:
        """Return those of these indices whose last command has ended."""
        now = time.perf_counter()
        copying = {one[0] for one in list(self._copies)}
        return [index for index in indices if self._commands.get(index, 0.0) <= now and index not in copying]

    def is_done(self, index: int) -> bool:
        """Return whether the index's last command has ended."""
        return bool(self.finished([index]))

    def wait(self, index: int) -> None:
        """Wait for the index's last command."""
        while self._is_being_copied(index):
            time.sleep(_POLL_S)
        time.sleep(max(0.0, self._commands.get(index, 0.0) - time.perf_counter()))

    def free(self, index: int) -> None:
        """Free the bytes of this index."""
        self._commands.pop(index, None)
        if index in self._stored:
            self._spare.append(self._stored.pop(index))

    def close(self) -> None:
        """Free everything."""
        self._is_open = False
        self._stored.clear()
        self._spare.clear()
        self._commands.clear()

    def _begin(self, index: int, target: int, source: int, nbytes: int) -> None:
        self._until = max(self._until, time.perf_counter()) + nbytes / self.bandwidth
        self._commands[index] = self._until
        self._copies.append((index, target, source, nbytes))

    def _is_being_copied(self, index: int) -> bool:
        return any(one[0] == index for one in list(self._copies))

    def _copy(self) -> None:
        while self._is_open:
            while self._copies:
                _, target, source, nbytes = self._copies[0]
                ctypes.memmove(target, source, nbytes)
                self._copies.popleft()
            time.sleep(_POLL_S)
