"""Predicts the next iteration of a shape from the measured times of past ones. Pure.

Times are seconds, sizes bytes. Compute time is the time of a pass without its waits.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fastio.offload.autograd.trace import Trace
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.step import Step
from fastio.offload.planning.timeline import Timeline

CHANNELS = ("write", "read", "host write", "host read")  # the first two are those of the disk
_REMEMBERED = 8  # iterations
_SLOWER = 4
_DECISIVE = 0.2  # share of a channel's busy time that compute waited for: above it, the channel ran at full bandwidth


class Busy:
    """How long a channel had a transfer in flight. Transfers are added in the order in which they ended."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.seconds = 0.0
        self._until = 0.0

    def add(self, nbytes: int, began_s: float, ended_s: float) -> None:
        self.nbytes += nbytes
        self.seconds += max(0.0, ended_s - max(began_s, self._until))
        self._until = max(self._until, ended_s)


@dataclass
class Run:
    """One iteration: seconds of compute and of waiting, and the transfers."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    stalled_s: float = 0.0
    actual_s: float = 0.0
    waited: bool = False  # the pass waited for each transfer
    channels: dict[str, Busy] = field(default_factory=lambda: {name: Busy() for name in CHANNELS})


class History:
    """The latest iterations of one profile, the profiled one first."""

    def __init__(self) -> None:
        self._runs: deque[tuple[Run, Mapping[str, float]]] = deque(maxlen=_REMEMBERED)
        self.bandwidth: dict[str, float] = {}  # bytes/s, of the channels that were measured so far
        self._best: dict[str, float] = {}

    def paces(self) -> tuple[float, float] | None:
        """Return the seconds per byte of writes to host memory and to the disk; None while the first is not known.

        A disk that was not used yet is taken to be slower than host memory at its best by ``_SLOWER``, so that it is
        tried when host memory is slow.
        """
        host = self.bandwidth.get("host write")
        if not host:
            return None
        return 1 / host, 1 / self.bandwidth.get("write", self._best["host write"] / _SLOWER)

    @property
    def has_ended(self) -> bool:
        """Whether an iteration ended, with its backward."""
        return bool(self._runs)

    def pace(self, profiled_s: float) -> float | None:
        """Return the seconds of the forward passes since the profiled one over its own; None if there is none."""
        later = [run.forward_s for run, _ in self._runs][1:]
        return min(later) / profiled_s if later and profiled_s > 0 else None

    def add(self, run: Run) -> None:
        self._runs.append((run, dict(self.bandwidth)))
        for direction, busy in run.channels.items():
            decisive = run.waited or run.stalled_s > _DECISIVE * busy.seconds or direction not in self.bandwidth
            if decisive and busy.seconds > 0:
                self.measured(direction, busy.nbytes / busy.seconds)

    def measured(self, channel: str, bandwidth: float) -> None:
        """Take over the bytes/s that a channel has by itself."""
        self.bandwidth[channel] = bandwidth
        self._best[channel] = max(self._best.get(channel, 0.0), bandwidth)

    def compared(
        self, trace: Trace, moved: Collection[int], recomputed: Collection[int], window: int, reading: float
    ) -> tuple[Timeline | None, float | None]:
        """Return the latest iteration as a model has it, from what was known before, and its actual seconds.

        ``moved`` went to the disk. ``reading``: bytes for activations in backward with those that are read ahead.
        """
        if len(self._runs) < 2:
            return None, None
        latest, bandwidth = self._runs[-1]
        before = [run for run, _ in self._runs][:-1]
        before = before[1:] or before  # the first iteration of a process is slower for other reasons
        forward_s = statistics.median_low(run.forward_s for run in before)
        backward_s = statistics.median_low(run.backward_s for run in before)
        last_s = max(trace.used_s.values(), default=0.0)
        later = forward_s / trace.forward_s if trace.forward_s > 0 else 0.0
        write_s, read_s = (1 / bandwidth[way] if bandwidth.get(way) else 0.0 for way in ("write", "read"))
        stored = trace.stored()
        step = Step(
            [
                ActivationProfile(saved.nbytes, nbytes * write_s, 1.0, saved.ready_s * later)
                for saved, nbytes in zip(trace.saved, stored, strict=True)
            ],
            forward_s,
            backward_s,
            trace.timed_uses(backward_s / last_s if last_s > 0 else 0.0),
            [nbytes * read_s for nbytes in stored],
            trace.recomputable,
            window=window,
            reading=reading,
        )
        return step.timeline(moved, recomputed), latest.actual_s
