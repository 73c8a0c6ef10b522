"""One forward pass: its blobs, who is who among them, and the order in which its backward asks for them."""

from __future__ import annotations

import itertools
import time

import torch

from fastio.offload.blob import Blob, View, span_to_save
from fastio.offload.planner import SIMPLE, Planner, Profile, prefix_like
from fastio.offload.prefetch import Order
from fastio.offload.trace import Made, Trace, graver, kind_of

# Numbers at the store: one count for the process, because managers may share a store.
_indices = itertools.count()


class Step:
    """One forward pass and the backward passes over its graph."""

    def __init__(self, number: int, planner: Planner) -> None:
        self.number = number
        self.trace = Trace()
        self.refused = False  # the store failed: whatever comes stays in memory
        self.blobs: dict[int, Blob] = {}
        self.order: Order | None = None
        self._planner = planner
        self._profile: Profile | None = None
        self._strayed = False  # from the profile: the rest is moved out, whatever the plan says
        self._began_s = time.perf_counter()
        self._waited_s = 0.0
        self._table: dict[tuple[int, int], list[Blob]] = {}

    def blob_of(self, tensor: torch.Tensor, view: View, module: str) -> tuple[Blob, bool]:
        """The blob that holds the tensor's bytes, and whether it is new.

        The same bytes are the same storage at the same version: addresses are used again, a storage's ``_cdata`` is
        not, while the blob's weak reference lives.
        """
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        key = (storage._cdata, tensor._version)
        kind = kind_of(module, tensor.dtype)
        touched = view.touched()
        for blob in self._table.get(key, ()):
            if blob.source_nbytes == nbytes and blob.span.covers(touched):
                self.trace.kinds[blob.ordinal] = graver(self.trace.kinds[blob.ordinal], kind)
                return blob, False
        trace = self.trace
        blob = Blob(self, len(trace.made), next(_indices), storage, span_to_save(view, nbytes))
        blob.key = key
        trace.made.append(Made(blob.nbytes, tensor.dtype, time.perf_counter() - self._began_s - self._waited_s))
        trace.kinds.append(kind)
        trace.transfer_s.append(0.0)
        trace.ratio.append(1.0)
        self.blobs[blob.ordinal] = blob
        self._table.setdefault(key, []).append(blob)
        return blob, True

    def decide(self) -> tuple[bool, bool]:
        """For the newest blob: whether it is moved out, and whether that is waited for."""
        made = self.trace.made
        if len(made) == 1:
            self._profile = self._planner.profile_for(made[0])
        elif self._profile is not None and not prefix_like(made, self._profile):
            self._strayed = True
        if self._planner.policy in SIMPLE:
            return True, self._planner.policy == "fastensor"
        if self._profile is None:
            return True, True
        return self._strayed or len(made) - 1 in self._profile.selected, False

    def packs(self, codec: str) -> bool:
        """Whether the codec is tried on the newest blob: not where it brought nothing in the profiled pass."""
        if codec == "none" or self._profile is None or self._strayed:
            return codec != "none"
        known = self._profile.trace
        ordinal = len(self.trace.made) - 1
        return ordinal >= len(known.ratio) or known.ratio[ordinal] > 1

    def packed(self, ordinal: int, ratio: float) -> None:
        """The codec made a blob that many times smaller."""
        self.trace.ratio[ordinal] = ratio

    def waited(self, ordinal: int, seconds: float) -> None:
        """The forward pass stood still that long for a blob's transfer."""
        self._waited_s += seconds
        self.trace.transfer_s[ordinal] = seconds

    def over(self) -> None:
        """The forward pass ended well."""
        self.trace.forward_s = max(0.0, time.perf_counter() - self._began_s - self._waited_s)
        if self.order is None:
            self.follow()
        if not self.refused:  # transfers that failed say nothing of how long they take
            self._planner.over(self.trace, self._profile, self._strayed)

    def follow(self) -> None:
        """Backward is expected in the recorded order, or else in reverse."""
        known = None if self._profile is None or self._strayed else self._profile.trace.uses
        self.order = Order(list(known) if known else range(len(self.trace.made) - 1, -1, -1))

    def used(self, ordinal: int) -> None:
        """Backward asked for a blob."""
        self.trace.uses.append(ordinal)
        if self.order is None:
            self.follow()
        assert self.order is not None, "follow sets it"
        self.order.used(ordinal)

    def forget(self, blob: Blob) -> None:
        """The graph let go of a blob."""
        del self.blobs[blob.ordinal]
        twins = self._table[blob.key]
        twins.remove(blob)
        if not twins:
            del self._table[blob.key]
