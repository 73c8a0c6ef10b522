"""Plans which rank writes what of a state, by the planner of torch.distributed.checkpoint."""

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
    """What a rank could write; the keys that lead to each name, and a digest of its tree."""

    plan: SavePlan
    paths: dict[str, Any]
    tree: bytes


class GlobalPlan(NamedTuple):
    """The numbers of the items that each rank writes, and DCP's metadata of all of them."""

    kept: Sequence[list[int]]
    metadata: Metadata


def local_plan(state: RankState, is_first: bool) -> LocalPlan:
    """Plan what this rank could write: all its parts of tensors, and its objects."""
    described = {name: local.described() for name, local in state.tensors.items()}
    items = list(create_default_local_save_plan(described, is_first).items)
    items += [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in state.objects]
    return LocalPlan(SavePlan(items), dict(state.paths), state.tree)


def global_plan(locals_of: Sequence[LocalPlan]) -> GlobalPlan:
    """Divide what all ranks could write, so that everything is written once. CheckpointError if they do not agree."""
    _require_same_shapes(locals_of)
    plans = []
    for rank, local in enumerate(locals_of):
        is_same_tree = rank > 0 and local.tree == locals_of[0].tree
        left_out = f"{placeholders.TREE}{rank}" if is_same_tree else None
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
