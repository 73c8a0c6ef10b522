"""What load_model and load_into share: compare, read what is new, and fill what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fastio.models.in_place import check_tools
from fastio.models.load_plan import LoadPlan, Target, plan_load, wanted_dtype
from fastio.models.module_tensors import ModuleTensors, is_within
from fastio.models.partial_load import PartialLoad
from fastio.models.rank_group import RankGroup
from fastio.models.rank_loads import compare_loads, fill_in_place_together, read_new_together
from fastio.models.weight_files import open_weights

_CPU = torch.device("cpu")


class Loaded(NamedTuple):
    """What a load did: ``new`` tensors, those that were ``filled``, and the names of ``damaged`` ones."""

    plan: LoadPlan
    new: dict[str, torch.Tensor]
    filled: dict[str, torch.Tensor]
    damaged: set[str]
    partial: PartialLoad


class Load(NamedTuple):
    """The arguments of a load; see :func:`fastio.load_model`. ``ranks``: those that load together, if there are."""

    function: str
    filename: Any
    strict: bool
    atomic: bool
    dtype: torch.dtype | None
    policy: Any
    verify: bool
    ranks: RankGroup | None

    def run(self, target: Target, found: ModuleTensors, place_of: Callable[[str], torch.device]) -> Loaded:
        """Fill tensors with memory that load plainly. Read others to new memory, those on the meta device to their
        place. All that can be known is checked before."""
        ranks, dtype = self.ranks, self.dtype
        with open_weights(self.filename, self.verify, is_shared=ranks is not None) as files:
            plan = plan_load(target, found, files, self.strict, dtype)
            skip_damaged = self.atomic and not self.strict
            own = {""} if self.atomic else found.own
            new: dict[str, torch.device] = {}
            converted: dict[str, torch.Tensor] = {}
            filled: dict[str, torch.Tensor] = {}
            for name in plan.names:
                tensor = found.tensors.get(name)
                if tensor is None:
                    new[name] = _CPU
                elif not tensor.is_meta and not (own and is_within(name, own)):
                    filled[name] = tensor
                elif not tensor.is_meta:
                    new[name] = tensor.device
                elif files.entry(name).dtype == wanted_dtype(tensor, dtype) or skip_damaged:
                    new[name] = place_of(name)
                else:
                    converted[name] = torch.empty(tensor.shape, dtype=dtype, device=place_of(name))
            made = {tensor.device for tensor in (*converted.values(), *filled.values())}
            check_tools(self.policy, {*new.values(), *made}, files)
            visible = [name for name, one in found.tensors.items() if not one.is_meta and name not in plan.aliases]
            partial = PartialLoad(target.noun, visible)
            arguments = {name: getattr(self, name) for name in ("function", "strict", "atomic", "dtype", "verify")}
            compare_loads(ranks, arguments, files, new, {**converted, **filled}, plan.overlapping)
            loaded, damaged = read_new_together(ranks, new, files, self.policy, skip_damaged)
            fill_in_place_together(ranks, converted, set(), files, self.policy, partial)
            fill_in_place_together(ranks, filled, plan.overlapping, files, self.policy, partial)
        return Loaded(plan, {**loaded, **converted}, filled, damaged, partial)
