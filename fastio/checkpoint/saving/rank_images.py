"""Lays out a rank's data file. Where a state is described as the one before, only what changed is filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.distributed.checkpoint.metadata import MetadataIndex

from fastio.checkpoint.saving.rank_plans import LocalPlan
from fastio.checkpoint.saving.rank_state import LocalTensor, RankState
from fastio.distributed.items import Image, ImageBuilder
from fastio.runtime.gc_pause import gc_paused

_KEPT = 2  # with a queue, two copies of the state are written in turn


class _Basis(NamedTuple):
    """All that a layout depends on: which items are kept of which plan, of what, and where it lies."""

    plan: LocalPlan
    tensors: Mapping[str, LocalTensor]
    kept: Sequence[int]
    addresses: Sequence[int]
    sizes: Mapping[str, int]

    def is_that_of(self, other: _Basis) -> bool:
        return self.plan is other.plan and self.tensors is other.tensors and self[2:] == other[2:]


class RankImages:
    """The layouts of the steps before, which lie in the memory of a snapshot."""

    def __init__(self) -> None:
        self._known: list[tuple[_Basis, Image]] = []

    def image(self, state: RankState, plan: LocalPlan, kept: Sequence[int], is_snapshot: bool) -> Image:
        """Return the layout of some items of a plan. No layout that was returned before may be in use."""
        if not is_snapshot:  # its memory is not to be kept
            return lay_out(state, [plan.plan.items[number].index for number in kept])
        addresses = [storage.data_ptr() for _, storage, _ in state.storages]
        sizes = {name: len(data) for name, data in state.objects.items()}
        basis = _Basis(plan, state.tensors, kept, addresses, sizes)
        known = next((one for one in self._known if basis.is_that_of(one[0])), None)
        with gc_paused():
            if known is not None:
                image = known[1].again(state.objects)
            else:
                image = lay_out(state, [plan.plan.items[number].index for number in kept])
        others = [one for one in self._known if one is not known]
        self._known = [(basis, image), *others][:_KEPT] if image.is_repeatable else others
        return image


def lay_out(state: RankState, indices: Sequence[MetadataIndex]) -> Image:
    """Return the layout of items. Their memory must not change until it is written."""
    builder = ImageBuilder()
    for index in indices:
        name = index.fqn
        if name in state.objects:
            builder.add_bytes(index, memoryview(state.objects[name]))
        else:
            builder.add(index, state.tensor(name))
    return builder.build()
