"""When an iteration computes, waits and transfers, by a model. Pure. Bytes and seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Transfer:
    """An activation's transfer, in seconds from the start of the iteration."""

    activation: int
    start_s: float
    finish_s: float


@dataclass(frozen=True)
class Timeline:
    """A simulated iteration.

    ``forward_s`` and ``backward_s`` are compute alone. ``forward_stall_s`` is the time that forward waited for writes.
    ``backward_stall_s`` is the time that backward waited for reads, and recomputed.
    """

    forward_s: float
    backward_s: float
    forward_stall_s: float
    backward_stall_s: float
    writes: tuple[Transfer, ...]
    reads: tuple[Transfer, ...]

    @property
    def iteration_s(self) -> float:
        """Seconds of the whole iteration."""
        return self.forward_s + self.forward_stall_s + self.backward_s + self.backward_stall_s

    @property
    def slowdown(self) -> float:
        """The iteration over one without offload; 1 for no loss."""
        plain = self.forward_s + self.backward_s
        return self.iteration_s / plain if plain > 0 else (1.0 if self.iteration_s == 0 else math.inf)
