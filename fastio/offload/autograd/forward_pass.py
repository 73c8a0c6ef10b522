"""One forward pass: its saved tensors, which of them share bytes, and the order in which its backward reads them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch

from fastio import devices
from fastio.memory.raw_memory import storage_bytes
from fastio.offload.autograd.compute_times import Clock, ComputeTimes
from fastio.offload.autograd.convolution_algorithms import ConvolutionAlgorithms
from fastio.offload.autograd.hooks import Kind
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.autograd.trace import RECOMPUTED, OperatorCall, SavedRecord, Trace
from fastio.offload.autograd.version_counters import counter_of, witness_of
from fastio.offload.autograd.views import Span, span_to_save
from fastio.offload.planning.history import Run
from fastio.offload.planning.layers import Prefetching
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.prefetch import Order
from fastio.offload.planning.profile import BY_LAYER, Placement, Profile
from fastio.offload.report import Iteration

# Index at the store. Counted per process, because managers may share a store.
_indices = itertools.count()

_current_node: Any = torch._C._current_autograd_node  # that backward runs in this thread; None outside of it
_CPU = torch.device("cpu")
_BATCH = 1 << 20  # bytes: more would begin too late, and less tells an accelerator more often


class ForwardPass:
    """One forward pass and the backward passes over its graph."""

    def __init__(self, number: int, planner: Planner) -> None:
        self.number = number
        self.trace = Trace()
        self.recompute_room = 0  # bytes to leave free for what a recomputation reads
        self.warms_up = False  # the first pass of its shape on an accelerator: no profile is made of it
        self.refused = False  # the store failed: later tensors stay in memory
        self.saved_tensors: dict[int, SavedTensor] = {}
        self.kept_nbytes = 0  # of saved tensors that the plan keeps in memory
        self.resized: frozenset[int] = frozenset()  # ordinals whose storage the program resizes: these stay
        self.order: Order | None = None
        self.prefetching: Prefetching | None = None  # if the policy brings tensors back layer by layer
        self.algorithms: ConvolutionAlgorithms | None = None  # if the policy chooses those of convolutions
        self._planner = planner
        self._profile: Profile | None = None
        self._diverged = False  # from the profile: everything else moves out, whatever the plan says
        self._run = Run()
        self._clock = Clock()
        self._waited_s = 0.0  # for moving out, including the codec
        self._stalled_s = 0.0  # for transfers only
        self._planned: Sequence[SavedRecord] = ()  # of the profile that the pass follows, if it is timed
        # Bytes that wait to be moved out together, and are read back together: an accelerator is told less often.
        self.batch_nbytes = 0
        self.is_steady = False  # the pass saves what its profile did so far, and waits for nothing
        self._by_bytes: dict[tuple[int, int, int], list[SavedTensor]] = {}
        self._operator: int | None = None  # the latest one that saved a tensor
        self._operator_saved: set[int] = set()  # ordinals that it saved
        self._operator_nbytes = 0
        self._forward_done = False
        self._tells_uses = True  # no pass like this one has told yet which tensors backward uses, and when
        self._device = _CPU  # or the accelerator that the latest tensor on one is on
        self._is_accelerated = False  # it is one
        self._times: ComputeTimes | None = None  # of an accelerator's compute, in the pass that tells it
        now = time.perf_counter()
        self.iteration = Iteration(number, now, now)

    def saved_tensor_of(
        self,
        tensor: torch.Tensor,
        kind: Kind,
        storage: torch.UntypedStorage,
        nbytes: int,
        touched: Span,
    ) -> tuple[SavedTensor, bool]:
        """Return the SavedTensor that holds the tensor's bytes, and whether it is new. The storage has ``nbytes``.

        Two tensors have the same bytes if they share the storage, the version counter and its value. torch reuses
        addresses, but not a storage's ``_cdata`` or the address of its counter while the weak reference and the witness
        of the SavedTensor live.
        """
        accelerator, lazy = kind.accelerator, kind.conj or kind.neg
        stream, device = None, _CPU
        if accelerator is not None:
            device = tensor.device
            self._device, self._is_accelerated = device, True
            stream = accelerator.current_stream(device)
            # The memory is freed before the graph is. A conjugate or negative view would record a copy.
            (storage_bytes(storage) if lazy else tensor).record_stream(stream)
        if self._run.waited:
            self._synchronize_if_timed()
        key = (storage._cdata, counter_of(tensor), tensor._version)
        known = self._by_bytes.get(key)
        if known is not None:
            for saved in known:
                if saved.source_nbytes == nbytes and saved.span.covers(touched):
                    return saved, False
        span = touched if touched.nbytes == nbytes else span_to_save(touched, nbytes, accelerator is None)
        ordinal = len(self.trace.saved)
        witness = witness_of(tensor, lazy)
        saved = SavedTensor(
            self, ordinal, next(_indices), storage, nbytes, span, witness, device, accelerator, stream, key
        )
        planned, nbytes, dtype = self._planned, span.nbytes, tensor.dtype
        if ordinal < len(planned) and planned[ordinal].nbytes == nbytes and planned[ordinal].dtype is dtype:
            self.trace.saved.append(planned[ordinal])
        else:
            self._record(nbytes, dtype)
        self.saved_tensors[ordinal] = saved
        if known is None:
            self._by_bytes[key] = [saved]
        else:
            known.append(saved)
        return saved, True

    def _record(self, nbytes: int, dtype: torch.dtype) -> None:
        """Record a new saved tensor, which is not the one that the profile has at this place."""
        if self._planned:
            self._planned, self.is_steady, self.batch_nbytes = (), False, 0
            self.trace.end_following()
        self.trace.add(SavedRecord(nbytes, dtype, self._elapsed() - self._waited_s))

    def saved_with(self, key: tuple[int, int, int]) -> Sequence[SavedTensor]:
        """Return the saved tensors that hold bytes of this storage, version counter and version."""
        return self._by_bytes.get(key, ())

    @property
    def is_profiled(self) -> bool:
        """Whether this pass follows no profile yet. Known from the first saved tensor to the end of the pass."""
        return self._profile is None

    @property
    def recomputing_calls(self) -> frozenset[OperatorCall]:
        """The calls of operators that the plan runs again."""
        return frozenset() if self._profile is None else self._profile.recomputing_calls

    def saved_by(self, operator: int, saved: SavedTensor) -> None:
        """Record that an operator saved these bytes: backward needs all that one operator saved at once."""
        if operator != self._operator:
            self._operator, self._operator_saved, self._operator_nbytes = operator, set(), 0
        if saved.ordinal not in self._operator_saved:
            self._operator_saved.add(saved.ordinal)
            self._operator_nbytes += saved.nbytes
            if self._operator_nbytes > self.trace.working_set:
                self.trace.working_set = self._operator_nbytes

    def decide(self, codec: str) -> Placement:
        """Decide where the newest saved tensor goes: what its profile decided, if the pass follows one."""
        made = self.trace.saved
        ordinal = len(made) - 1
        profile = self._profile
        if self._planned and profile is not None and profile.placements[ordinal].moves:
            return profile.placements[ordinal]
        waits = self._planner.policy == "fastensor"
        if ordinal == 0:
            profile = self._profile = self._planner.profile_for(made[0], self._device)
            if profile is not None:
                self.recompute_room, self.resized = profile.recompute_room, profile.trace.resized
            self.warms_up = self._is_accelerated and self._planner.is_new(made[0])
            if profile is not None and not profile.timed:
                self._times = ComputeTimes()
            elif profile is not None and profile.placements:
                self._planned, self.is_steady = profile.trace.saved, not waits
                if self._planner.policy in BY_LAYER:
                    self._follow_layers(profile)
                elif self.is_steady and self._is_accelerated:
                    self.batch_nbytes = self._batch_for(profile.trace)
                self.trace.follow(profile.trace)
        elif profile is not None and not self._diverged:
            known = profile.trace.saved
            self._diverged = ordinal >= len(known) or not made[ordinal].matches(known[ordinal])
            if self._diverged:
                self.resized = frozenset()
        if self._times is not None:
            self._times.ready(self._device)
        encodes = codec != "none"
        if profile is None:
            self._run.waited = waits = self._planner.policy != "all" or self._is_accelerated
            self.iteration.profiled = waits
            return Placement(True, waits, encodes)
        if self._diverged:
            return Placement(True, waits, encodes)
        # Encoding may have saved nothing in the profiled pass. Another thread's may have ended since the latest plan.
        if not profile.timed or not profile.placements:
            return Placement(True, waits, profile.trace.ratio[ordinal] > 1)
        self._run.waited = waits
        placement = profile.placements[ordinal]
        if not placement.moves and placement.tier != RECOMPUTED:
            saved = self.saved_tensors[ordinal]
            if not self._planner.may_keep(saved.nbytes):  # beside what the passes of other threads keep
                return Placement(True, waits, placement.encodes)
            self.keep(saved, True)
        return placement

    def _follow_layers(self, profile: Profile) -> None:
        layers = profile.trace.layers
        self.prefetching = Prefetching(layers, profile.selected)
        if profile.trials is not None and self._is_accelerated:
            sizes = [saved.nbytes for saved in profile.trace.saved]
            accelerator = devices.of(self._device)
            self.algorithms = ConvolutionAlgorithms(profile.trials, layers, accelerator, self._device, sizes)

    def is_read(self, saved: SavedTensor) -> Placement | None:
        """Another operator saved these bytes: return how they move, if it is the last one."""
        saved.readers -= 1
        return self._profile.placements[saved.ordinal] if saved.readers == 0 and self._profile is not None else None

    def _batch_for(self, trace: Trace) -> int:
        """Return the bytes to transfer at once; 0 if that is less than two activations, as they are on average."""
        nbytes = min(_BATCH, self._planner.window // 4)
        return nbytes if nbytes * len(trace.saved) >= 2 * sum(saved.nbytes for saved in trace.saved) else 0

    def keep(self, saved: SavedTensor, kept: bool) -> None:
        """Count a saved tensor as one that stays in memory, or not."""
        if kept != saved.kept:
            saved.kept = kept
            self._count_kept(saved.nbytes if kept else -saved.nbytes)

    def _count_kept(self, nbytes: int) -> None:
        self.kept_nbytes += nbytes
        self._planner.kept_nbytes += nbytes

    def begin_move_out(self) -> None:
        """A saved tensor is moved out now: until :meth:`record_move_out`, the forward pass waits."""
        self._synchronize_if_timed()
        if self._times is not None:
            self._times.pause(self._device)

    def seconds(self, saved: SavedTensor) -> float:
        """Return the seconds now, by the clock of what computes a saved tensor if this pass measures transfers.

        The pass waits then for what is queued on the current stream.
        """
        return self._clock.now(saved.accelerator if self._run.waited else None, saved.device)

    def record_encoding(self, ordinal: int, ratio: float, seconds: float) -> None:
        """Record how many times smaller the codec made a saved tensor (1: not at all), and how long that took."""
        self.trace.ratio[ordinal] = ratio
        self.trace.pack_s[ordinal] = seconds

    def record_move_out(self, ordinal: int, waited_s: float, seconds: float, tier: str) -> None:
        """Record that a saved tensor was moved to a tier in so many seconds, for which the forward pass waited."""
        self.record_moves_out(waited_s)
        self.trace.transfer_s[ordinal] = seconds
        self.trace.tiers[ordinal] = tier
        if self._times is not None:
            self._times.resume(self._device)

    def record_moves_out(self, seconds: float) -> None:
        """Record that the forward pass waited ``seconds`` to move saved tensors out."""
        self._waited_s += seconds

    def record_trial(self, seconds: float) -> None:
        """Record that backward took ``seconds`` for what plain training does not compute: no time of its operators."""
        self._stalled_s += seconds

    def record_stall(self, seconds: float) -> None:
        """Record that a pass waited ``seconds`` for a transfer."""
        self._stalled_s += seconds
        self.iteration.waited_s += seconds
        if self.iteration.profiled:
            self._planner.profiling_waited_s += seconds

    def record_transfer(self, channel: str, nbytes: int, began_s: float, ended_s: float) -> None:
        """Record a transfer that ended: see :data:`fastio.offload.planning.history.CHANNELS`."""
        self._run.channels[channel].add(nbytes, began_s, ended_s)

    def record_bandwidth(self, channel: str, bandwidth: float) -> None:
        """Record the bytes/s of a transfer that the host did not see end."""
        if self._profile is not None:
            self._profile.history.measured(channel, bandwidth)

    def finish(self) -> None:
        """End a forward pass that raised no exception."""
        self._end_forward()
        if self.order is None:
            self.follow_order()
        if self._planned:
            self.trace.end_following()
        if self.algorithms is not None:
            self.algorithms.end()
        if self._profile is None:
            self.trace.resized = frozenset(i for i, saved in self.saved_tensors.items() if saved.was_resized)
        if not self.refused:  # failed transfers have no useful times
            self._profile = self._planner.record(self.trace, self._profile, self._diverged, self._is_accelerated)
            self._set_times()
            known = None if self._profile is None else self._profile.trace.uses
            self._tells_uses = not known or known is self.trace.uses
        self._forward_done = True
        self._end()

    def abandon(self) -> None:
        """End a forward pass that raised an exception."""
        if self.algorithms is not None:
            self.algorithms.release()

    def follow_order(self) -> None:
        """Expect backward to use the recorded order, or the reverse order if none is recorded."""
        known = self.trace if self._profile is None or self._diverged else self._profile
        self.order = Order(known.order())

    def record_sources(self, saved: SavedTensor) -> None:
        """Record that backward needs what a saved tensor is recomputed from, unless its bytes are in memory."""
        if self._profile is None or not self._profile.recomputed or self._diverged:
            return
        if self.order is None:
            self.follow_order()
        assert self.order is not None, "follow sets it"
        if saved.recipe is not None and saved.state is State.RECOMPUTED and not saved.is_in_memory:
            for source in saved.recipe.sources:
                self.record_sources(source)
                self.order.used(source.ordinal)

    def record_use(self, ordinal: int) -> bool:
        """Record that backward needs a saved tensor. Return whether it was expected next."""
        if self.iteration.backward_began_s is None:
            self._end_forward()
        if self._run.waited:
            self._synchronize_if_timed()
        if self._times is not None:
            self._times.used(ordinal, self._device)
        if self._tells_uses:
            self._tell_use(ordinal)
        order = self.order
        if order is None:
            self.follow_order()
            order = self.order
        assert order is not None, "follow sets it"
        expected = order.used(ordinal)
        if self.algorithms is not None and expected:
            self.algorithms.used(order.position - 1)
        return expected

    def _tell_use(self, ordinal: int) -> None:
        trace = self.trace
        trace.uses.append(ordinal)
        if not self.is_steady and (node := _current_node()) is not None:
            trace.record_operator(ordinal, node.name(), node._sequence_nr())
        if ordinal not in trace.used_s:
            since = time.perf_counter() - self.iteration.forward_ended_s - (self._stalled_s - self._run.stalled_s)
            trace.used_s[ordinal] = since if since > 0.0 else 0.0

    def record_served(self) -> None:
        """Record that backward has the saved tensor it needed."""
        self.iteration.backward_ended_s = time.perf_counter()
        if self._times is not None:
            self._times.resume(self._device)

    def forget(self, saved: SavedTensor) -> None:
        """Remove a saved tensor that the graph released. May be called again after an interrupt."""
        if self.saved_tensors.pop(saved.ordinal, None) is not None and saved.kept:
            self._count_kept(-saved.nbytes)
        same = self._by_bytes.pop(saved.key, None)
        if same is not None and (len(same) > 1 or same[0] is not saved):
            self._by_bytes[saved.key] = [one for one in same if one is not saved]
        if not self.saved_tensors:
            if self.algorithms is not None:
                self.algorithms.end()
            self._end()

    def _set_times(self) -> None:
        """Give the profile the times of the forward pass on an accelerator, and let it be planned."""
        if self._profile is None:
            self._times = None  # it did not follow the profile
        elif not self._profile.timed and self._times is not None:
            self._times.set_forward(self._profile.trace)
            self._profile.timed = True

    def _synchronize_if_timed(self) -> None:
        """Wait for the GPU in a pass that waits for every transfer (such as the profiled one), for correct times."""
        if self._run.waited and self._is_accelerated:
            devices.of(self._device).current_stream(self._device).synchronize()

    def _elapsed(self) -> float:
        return time.perf_counter() - self.iteration.forward_began_s

    def _end_forward(self) -> None:
        """Record the end of forward: at the end of the context, or when backward begins inside it."""
        if self.iteration.backward_began_s is None:
            self._synchronize_if_timed()
            if self._times is not None:
                self._times.end_forward(self._device)
            elapsed = self._elapsed()
            self.iteration.forward_ended_s = self.iteration.backward_began_s = time.perf_counter()
            self.trace.forward_s = max(0.0, elapsed - self._waited_s)
            self._run.forward_s = max(0.0, elapsed - self._stalled_s)
            self._run.stalled_s = self._stalled_s

    def _end(self) -> None:
        """Record the iteration once the graph has released everything it saved."""
        ended = self.iteration.backward_ended_s
        if self.saved_tensors or not self._forward_done or ended is None or self._profile is None or self.refused:
            return
        run, self._forward_done = self._run, False
        run.actual_s = ended - self.iteration.forward_began_s
        run.backward_s = max(0.0, ended - self.iteration.forward_ended_s - (self._stalled_s - run.stalled_s))
        run.stalled_s = self._stalled_s
        if self._times is not None:
            self._times.set_backward(self._profile.trace)
            self._times = None
        if self._is_accelerated:  # the host's clock tells when work was launched
            run.forward_s = self._profile.trace.forward_s
            run.backward_s = max(self._profile.trace.used_s.values(), default=0.0)
        self._profile.history.add(run)
        if self._profile.trials is not None and self._planned:
            self._profile.trials.ended = True
        self._planner.backward_ended(self._profile)
