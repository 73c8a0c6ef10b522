"""Copies of host memory that run at once, or late and out of order, and fail on demand, as those of a GPU may."""

from __future__ import annotations

import contextlib
import ctypes
import random
from dataclasses import dataclass
from typing import Any

from fastio.errors import RefusedError
from fastio.offload.stores.copies import CpuCopies


@dataclass
class LateTicket:
    destination: int
    source: int
    nbytes: int
    lag: int
    fails: bool
    copied: bool = False

    def query(self) -> bool:
        self.lag -= 1
        if self.lag > 0 and not self.copied:
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        if not self.copied:
            self.copied = True
            if self.fails:
                ctypes.memset(self.destination, 0xDD, self.nbytes)
            else:
                ctypes.memmove(self.destination, self.source, self.nbytes)
        if self.fails:
            raise RefusedError("the copy failed")


class LateCopies(CpuCopies):
    """``failing`` is the share of copies that fail while they run, ``refusing`` of those that fail at the start."""

    def __init__(self, seed: int, lag: int = 6, failing: float = 0.0, refusing: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._lag = lag
        self._failing = failing
        self._refusing = refusing
        self._tickets: list[LateTicket] = []

    def out(self, address: int, host: int, nbytes: int, computed_by: Any = None) -> LateTicket:
        return self._ticket(host, address, nbytes)

    def back(self, host: int, address: int, nbytes: int, fence: Any) -> LateTicket:
        return self._ticket(address, host, nbytes)

    def is_done(self, event: Any) -> bool:
        return bool(event.query())

    def wait(self, event: Any) -> None:
        event.synchronize()

    def _ticket(self, destination: int, source: int, nbytes: int) -> LateTicket:
        if self._random.random() < self._refusing:
            raise RefusedError("no copy now")
        fails = self._random.random() < self._failing
        ticket = LateTicket(destination, source, nbytes, self._random.randint(0, self._lag), fails)
        self._tickets.append(ticket)
        return ticket

    def synchronize(self) -> None:
        """Run the remaining copies, as a GPU would, though no caller waits for them."""
        for ticket in self._tickets:
            with contextlib.suppress(RefusedError):
                ticket.synchronize()
