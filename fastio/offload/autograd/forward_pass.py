"""One forward pass: its blobs, who is who among them, and the order in which its backward asks for them."""

from __future__ import annotations

import itertools
import time
from typing import NamedTuple

import torch

from fastio.offload.autograd.operators import Operator
from fastio.offload.autograd.saved_tensor import SavedTensor, View, span_to_save
from fastio.offload.autograd.trace import DISK, HOST, Made, Trace, graver, kind_of
from fastio.offload.autograd.version_counters import counter_of, witness_of
from fastio.offload.planning.history import Run
from fastio.offload.planning.planner import Planner, prefix_like
from fastio.offload.planning.prefetch import Order
from fastio.offload.planning.profile import Profile
from fastio.offload.report import Event, Iteration

# Numbers at the store: one count for the process, because managers may share a store.
_indices = itertools.count()


class Choice(NamedTuple):
    """What becomes of a new blob. ``tier``: which is to keep it; "" for the host's where it has room."""

    moves: bool
    waits: bool = False
    tier: str = ""


class ForwardPass:
    """One forward pass and the backward passes over its graph."""

    def __init__(self, number: int, planner: Planner) -> None:
        self.number = number
        self.trace = Trace()
        self.refused = False  # the store failed: whatever comes stays in memory
        self.blobs: dict[int, SavedTensor] = {}
        self.order: Order | None = None
        self._planner = planner
        self._profile: Profile | None = None
        self._strayed = False  # from the profile: the rest is moved out, whatever the plan says
        self._run = Run()
        self._waited_s = 0.0  # for moving out, codec and all
        self._stalled_s = 0.0  # for transfers alone
        self._table: dict[tuple[int, int, int], list[SavedTensor]] = {}
        self._operator: Operator | None = None  # the latest that saved something
        self._saved: set[int] = set()  # the blobs that it saved, and their bytes
        self._saved_nbytes = 0
        self._is_over = False
        self._device = torch.device("cpu")
        now = time.perf_counter()
        self.iteration = Iteration(number, now, now)

    def blob_of(self, tensor: torch.Tensor, view: View, module: str) -> tuple[SavedTensor, bool]:
        """The blob that holds the tensor's bytes, and whether it is new.

        The same bytes are the same storage at the same version of the same counter: addresses are used again, a
        storage's ``_cdata`` and its counter's are not, while the blob's weak reference and its witness live.
        """
        self._device = tensor.device
        self._settle()
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        key = (storage._cdata, counter_of(tensor), tensor._version)
        kind = kind_of(module, tensor.dtype)
        touched = view.touched()
        for blob in self._table.get(key, ()):
            if blob.source_nbytes == nbytes and blob.span.covers(touched):
                self.trace.kinds[blob.ordinal] = graver(self.trace.kinds[blob.ordinal], kind)
                return blob, False
        trace = self.trace
        span = span_to_save(view, nbytes, storage.device)
        blob = SavedTensor(self, len(trace.made), next(_indices), storage, span, witness_of(tensor))
        blob.key = key
        trace.made.append(Made(blob.nbytes, tensor.dtype, self._elapsed() - self._waited_s))
        trace.kinds.append(kind)
        trace.transfer_s.append(0.0)
        trace.pack_s.append(0.0)
        trace.ratio.append(1.0)
        trace.tiers.append("")
        self.blobs[blob.ordinal] = blob
        self._table.setdefault(key, []).append(blob)
        return blob, True

    def saved_by(self, operator: Operator, blob: SavedTensor) -> None:
        """An operator saved a tensor with this blob's bytes. Backward needs all that one operator saved at once."""
        if operator != self._operator:
            self._operator, self._saved, self._saved_nbytes = operator, set(), 0
        if blob.ordinal not in self._saved:
            self._saved.add(blob.ordinal)
            self._saved_nbytes += blob.nbytes
            self.trace.working_set = max(self.trace.working_set, self._saved_nbytes)

    def decide(self) -> Choice:
        """For the newest blob."""
        made = self.trace.made
        if len(made) == 1:
            self._profile = self._planner.profile_for(made[0])
        elif self._profile is not None and not prefix_like(made, self._profile):
            self._strayed = True
        waits = self._planner.policy == "fastensor"
        if self._profile is None:
            self._run.waited = waits = self._planner.policy != "all"
            return Choice(True, waits)
        if self._strayed:
            return Choice(True, waits)
        ordinal = len(made) - 1
        self._run.waited = waits
        tier = HOST if ordinal in self._profile.hosted else DISK
        return Choice(ordinal in self._profile.selected, waits, tier)

    def packs(self, codec: str) -> bool:
        """Whether the codec is tried on the newest blob: not where it brought nothing in the profiled pass."""
        if codec == "none" or self._profile is None or self._strayed:
            return codec != "none"
        known = self._profile.trace
        ordinal = len(self.trace.made) - 1
        return ordinal >= len(known.ratio) or known.ratio[ordinal] > 1

    def packed(self, ordinal: int, ratio: float, seconds: float) -> None:
        """The codec made a blob that many times smaller, 1 for not at all, and took so long."""
        self.trace.ratio[ordinal] = ratio
        self.trace.pack_s[ordinal] = seconds

    def waited(self, ordinal: int, seconds: float, tier: str) -> None:
        """The forward pass stood still that long to move a blob out to a tier."""
        self._waited_s += seconds
        self.trace.transfer_s[ordinal] = seconds
        self.trace.tiers[ordinal] = tier

    def stalled(self, seconds: float) -> None:
        """A pass waited that long for a transfer."""
        self._stalled_s += seconds

    def moved(self, event: Event) -> None:
        """A transfer is over."""
        if event.tier == DISK:
            self._run.channels[event.op].add(event.nbytes, event.began_s, event.ended_s)

    def over(self) -> None:
        """The forward pass ended well."""
        self._end_forward()
        if self.order is None:
            self.follow()
        if not self.refused:  # transfers that failed say nothing of how long they take
            self._profile = self._planner.over(self.trace, self._profile, self._strayed)
        self._is_over = True
        self._end()

    def follow(self) -> None:
        """Backward is expected in the recorded order, or else in reverse."""
        known = self.trace if self._profile is None or self._strayed else self._profile.trace
        self.order = Order(known.order())

    def used(self, ordinal: int) -> None:
        """Backward asks for a blob."""
        self._end_forward()
        self._settle()
        self.trace.uses.append(ordinal)
        since = time.perf_counter() - self.iteration.forward_ended_s - (self._stalled_s - self._run.stalled_s)
        self.trace.used_s.setdefault(ordinal, max(0.0, since))
        if self.order is None:
            self.follow()
        assert self.order is not None, "follow sets it"
        self.order.used(ordinal)

    def served(self) -> None:
        """Backward has what it asked for."""
        self.iteration.backward_ended_s = time.perf_counter()

    def forget(self, blob: SavedTensor) -> None:
        """The graph let go of a blob. Once more, if that was interrupted."""
        self.blobs.pop(blob.ordinal, None)
        twins = [twin for twin in self._table.pop(blob.key, ()) if twin is not blob]
        if twins:
            self._table[blob.key] = twins
        self._end()

    def _settle(self) -> None:
        """In a pass that waits for every transfer, as the profiled one: for what computes on a GPU, too, to time it."""
        if self._run.waited and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _elapsed(self) -> float:
        return time.perf_counter() - self.iteration.forward_began_s

    def _end_forward(self) -> None:
        """At the end of the context, or when backward begins within it."""
        if self.iteration.backward_began_s is None:
            self._settle()
            elapsed = self._elapsed()
            self.iteration.forward_ended_s = self.iteration.backward_began_s = time.perf_counter()
            self.trace.forward_s = max(0.0, elapsed - self._waited_s)
            self._run.forward_s = max(0.0, elapsed - self._stalled_s)
            self._run.stalled_s = self._stalled_s

    def _end(self) -> None:
        """Backward is over when the graph has let go of all that it saved."""
        ended = self.iteration.backward_ended_s
        if self.blobs or not self._is_over or ended is None or self._profile is None or self.refused:
            return
        run, self._is_over = self._run, False
        run.actual_s = ended - self.iteration.forward_began_s
        run.backward_s = max(0.0, ended - self.iteration.forward_ended_s - (self._stalled_s - run.stalled_s))
        run.stalled_s = self._stalled_s
        self._profile.history.add(run)
