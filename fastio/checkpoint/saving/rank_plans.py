"""Plans which rank writes what of a state, by the planner of torch.distributed.checkpoint.

Plans are kept from step to step: a rank whose tensors have the same names and shapes as before sends no plan again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_local_save_plan
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from fastio.checkpoint import placeholders
from fastio.checkpoint.saving.rank_state import RankState
from fastio.errors import CheckpointError, quoted, shortened


class LocalPlan(NamedTuple):
    """What a rank could write; the keys that lead to each name."""

    plan: SavePlan
    paths: dict[str, Any]


class SentPlan(NamedTuple):
    """The plan of a rank for the first one, or None if it is that of the step before; and a digest of its tree."""

    local: LocalPlan | None
    tree: bytes


class GlobalPlan(NamedTuple):
    """The numbers of the items that each rank writes, and DCP's metadata of all of them."""

    kept: Sequence[list[int]]
    metadata: Metadata


class LocalPlanner:
    """Plans what this rank could write, step by step."""

    def __init__(self, is_first: bool) -> None:
        self._is_first = is_first
        self._known: Any = None  # what the first rank has the plan of, and that plan

    def plan(self, state: RankState) -> tuple[LocalPlan, SentPlan]:
        """Return the plan, and what to send of it."""
        self._now = state.tensors, list(state.objects), state.paths
        known, self._known = self._known, None
        is_same = known is not None and known[0] == self._now
        self._plan = known[1] if is_same else _local_plan(state, self._is_first)
        return self._plan, SentPlan(None if is_same else self._plan, state.tree)

    def keep(self) -> None:
        """Keep the plan for the next step: the first rank has planned with it."""
        self._known = self._now, self._plan


class GlobalPlanner:
    """Plans on the first rank for all ranks, step by step."""

    def __init__(self) -> None:
        self._locals: Sequence[LocalPlan] = ()
        self._known: tuple[list[bool], GlobalPlan] | None = None

    def plan(self, sent: Sequence[SentPlan]) -> GlobalPlan:
        """Return the plan for all ranks. CheckpointError if theirs do not fit together."""
        own_trees = [one.tree != sent[0].tree for one in sent]
        is_same = all(one.local is None for one in sent)
        if not is_same or self._known is None or self._known[0] != own_trees:
            locals_of = [self._locals[rank] if one.local is None else one.local for rank, one in enumerate(sent)]
            self._known = own_trees, _global_plan(locals_of, own_trees)
            self._locals = locals_of
        return self._known[1]


def _local_plan(state: RankState, is_first: bool) -> LocalPlan:
    """Plan what this rank could write: all its parts of tensors, and its objects."""
    described = {name: local.described() for name, local in state.tensors.items()}
    items = list(create_default_local_save_plan(described, is_first).items)
    items += [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in state.objects]
    return LocalPlan(SavePlan(items), dict(state.paths))


def _global_plan(locals_of: Sequence[LocalPlan], own_trees: Sequence[bool]) -> GlobalPlan:
    """Divide what all ranks could write, so that everything is written once. CheckpointError if they do not agree.

    The tree of a rank is left out unless it is another one than the first rank's.
    """
    _require_same_shapes(locals_of)
    plans = []
    for rank, local in enumerate(locals_of):
        left_out = f"{placeholders.TREE}{rank}" if rank > 0 and not own_trees[rank] else None
        plans.append(replace(local.plan, items=[item for item in local.plan.items if item.index.fqn != left_out]))
    planner = DefaultSavePlanner(flatten_state_dict=False)
    try:
        divided, metadata = planner.create_global_plan(plans)
    except ValueError as error:
        raise CheckpointError(f"the ranks' parts of the state do not fit together: {shortened(error)}") from error
    kept = []
    for local, plan in zip(locals_of, divided, strict=True):
        indices = {item.index for item in plan.items}
        kept.append([number for number, item in enumerate(local.plan.items) if item.index in indices])
    paths = {name: path for local in reversed(locals_of) for name, path in local.paths.items()}
    metadata = replace(metadata, planner_data={name: paths[name] for name in metadata.state_dict_metadata})
    version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    if version is not None:  # since torch 2.8
        metadata.version = version
    return GlobalPlan(kept, metadata)


def tensor_bytes(metadata: Metadata) -> int:
    """The bytes of all tensors of a checkpoint."""
    found = [entry for entry in metadata.state_dict_metadata.values() if isinstance(entry, TensorStorageMetadata)]
    return sum(entry.size.numel() * entry.properties.dtype.itemsize for entry in found)


def _require_same_shapes(locals_of: Sequence[LocalPlan]) -> None:
    """Raise CheckpointError for a tensor that has another shape or dtype on another rank, or is no tensor there."""
    seen: dict[str, tuple[int, str]] = {}
    for rank, local in enumerate(locals_of):
        for item in local.plan.items:
            data = item.tensor_data
            found = "no tensor" if data is None else f"{data.properties.dtype} {list(data.size)}"
            first, expected = seen.setdefault(item.index.fqn, (rank, found))
            if found != expected:
                raise CheckpointError(
                    f"{quoted(item.index.fqn)} is {found} on rank {rank}, and {expected} on rank {first}: plain "
                    "tensors must be the same on all ranks; make it a DTensor, or give each rank's its own key"
                )
