"""Copies of host memory that run at once, or late and out of order, and fail on demand, as those of a GPU may."""

from __future__ import annotations

import contextlib
import ctypes
import random
from dataclasses import dataclass
from typing import ClassVar

from fastio.errors import RefusedError
from fastio.offload.stores.copies import COMPLETED, Copy, Target


@dataclass
class LateTicket:
    destination: int
    source: int
    nbytes: int
    lag: int
    fails: bool
    copied: bool = False

    def is_done(self) -> bool:
        self.lag -= 1
        if self.lag > 0 and not self.copied:
            return False
        self.wait()
        return True

    def wait(self) -> None:
        if not self.copied:
            self.copied = True
            if self.fails:
                ctypes.memset(self.destination, 0xDD, self.nbytes)
            else:
                ctypes.memmove(self.destination, self.source, self.nbytes)
        if self.fails:
            raise RefusedError("the copy failed")


class LateCopies:
    """``failing`` is the share of copies that fail while they run, ``refusing`` of those that fail at the start."""

    pin_for: ClassVar[None] = None

    def __init__(self, seed: int, lag: int = 6, failing: float = 0.0, refusing: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._lag = lag
        self._failing = failing
        self._refusing = refusing
        self._tickets: list[LateTicket] = []

    def out(self, address: int, host: int, nbytes: int) -> LateTicket:
        return self._ticket(host, address, nbytes)

    def target(self, address: int, nbytes: int) -> Target:
        return Target(address, nbytes)

    def back(self, host: int, target: Target) -> LateTicket:
        return self._ticket(target.address, host, target.nbytes)

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
                ticket.wait()


class HostCopies:
    """Copies that are done at once."""

    pin_for: ClassVar[None] = None

    def out(self, address: int, host: int, nbytes: int) -> Copy:
        ctypes.memmove(host, address, nbytes)
        return COMPLETED

    def target(self, address: int, nbytes: int) -> Target:
        return Target(address, nbytes)

    def back(self, host: int, target: Target) -> Copy:
        ctypes.memmove(target.address, host, target.nbytes)
        return COMPLETED

    def synchronize(self) -> None:
        return
