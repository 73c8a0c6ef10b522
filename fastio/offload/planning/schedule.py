"""Chooses which activations to move out: one planner for the run, the simulator and the tests. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fastio.errors import kind_of, quoted
from fastio.offload.planning.flashneuron import flashneuron
from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.optimal import optimal
from fastio.offload.planning.overlap import ActivationProfile, finish_seconds, hides, transfer_seconds
from fastio.offload.planning.vdnn import leaving, vdnn_dyn

__all__ = ["POLICIES", "ActivationProfile", "InfeasibleBudget", "Policy", "Schedule", "plan"]

Policy = Callable[[Sequence[ActivationProfile], int, float], Iterable[int]]
"""``policy(activations, need_bytes, forward_s)`` returns the indices of the activations to move out, in any order."""

PolicyName = Literal["all", "flashneuron", "optimal", "vdnn-all", "vdnn-conv", "vdnn-dyn", "fastensor"]
POLICIES = ("all", "flashneuron", "optimal", "vdnn-all", "vdnn-conv", "vdnn-dyn", "fastensor")


@dataclass(frozen=True)
class Schedule:
    """What to move out, and what to recompute.

    ``selected`` and ``recomputed`` are indices of activations, ascending (in forward order). ``transfer_s`` is the sum
    of the transfer times of the selected ones, as stored. ``finish_s`` is when the last of them is out, from the start
    of the forward pass. ``status`` is "fits" if that hides behind the forward pass (with ``strict_paper``: if the sum
    does), and "delayed" if the schedule runs, but slower than without offload.
    """

    selected: tuple[int, ...]
    transfer_s: float
    finish_s: float
    status: Literal["fits", "delayed"]
    recomputed: tuple[int, ...] = ()


def plan(
    activations: Sequence[ActivationProfile],
    need_bytes: int,
    forward_s: float,
    policy: str | Policy = "flashneuron",
    strict_paper: bool = False,
) -> Schedule:
    """Choose what to move out so that at least ``need_bytes`` are freed.

    ``need_bytes`` is the activations, plus what else is resident, minus the memory. If it is 0 or less, "flashneuron",
    "optimal" and "vdnn-dyn" move nothing, and the static policies move what they always move. ``forward_s`` is
    the forward pass without I/O. Policies, besides a callable:

    - "flashneuron" and "optimal": see their modules. What an Offload could recompute is unknown here: see
      :mod:`fastio.offload.planning.joint`.
    - "all": every activation. "fastensor": every activation, synchronously (Fastensor, sections 4-5), so none hides.
    - "vdnn-all", "vdnn-conv", "vdnn-dyn": by ``ActivationProfile.kind``, see :mod:`fastio.offload.planning.vdnn`.

    Raises InfeasibleBudget if the policy cannot free ``need_bytes``, and ValueError for an unknown policy, a negative
    ``forward_s`` or an index from a callable that is out of range.
    """
    if not 0 <= forward_s < math.inf:
        raise ValueError(f"forward_s is {forward_s}: expected a finite number of 0 or more")
    total = sum(activation.nbytes for activation in activations)
    if total < need_bytes:
        cure = "make the budget larger or the batch smaller"
        raise InfeasibleBudget("moving out every activation", need_bytes, total, cure)
    selected = _select(activations, need_bytes, forward_s, policy, strict_paper)
    got = sum(activations[i].nbytes for i in selected)
    if got < need_bytes:
        cure = f"use policy 'all', which moves {total}, or make the budget larger"
        raise InfeasibleBudget(f"what policy {policy_name(policy)!r} moves out", need_bytes, got, cure)
    if policy == "fastensor":
        transfer_s = transfer_seconds(activations, selected)
        return Schedule(selected, transfer_s, forward_s + transfer_s, "delayed" if transfer_s > 0 else "fits")
    return schedule_of(activations, selected, forward_s, strict_paper=strict_paper)


def schedule_of(
    activations: Sequence[ActivationProfile],
    selected: tuple[int, ...],
    forward_s: float,
    recomputed: tuple[int, ...] = (),
    strict_paper: bool = False,
) -> Schedule:
    """Return the schedule that moves the selected activations out."""
    status: Literal["fits", "delayed"] = "fits" if hides(activations, selected, forward_s, strict_paper) else "delayed"
    finish_s = finish_seconds(activations, selected)
    return Schedule(selected, transfer_seconds(activations, selected), finish_s, status, recomputed)


def policy_name(policy: str | Policy) -> str:
    """Return the policy's name: a callable's own name, or its type's."""
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)


def _select(
    activations: Sequence[ActivationProfile],
    need_bytes: int,
    forward_s: float,
    policy: str | Policy,
    strict_paper: bool,
) -> tuple[int, ...]:
    if not isinstance(policy, str):
        return _checked(policy(activations, need_bytes, forward_s), len(activations))
    if policy in ("all", "fastensor"):
        return tuple(range(len(activations)))
    if policy == "flashneuron":
        return flashneuron(activations, need_bytes, forward_s, strict_paper)
    if policy == "optimal":
        return optimal(activations, need_bytes, forward_s, strict_paper)
    if policy == "vdnn-all":
        return leaving(activations, "all")
    if policy == "vdnn-conv":
        return leaving(activations, "conv")
    if policy == "vdnn-dyn":
        return vdnn_dyn(activations, need_bytes)
    raise ValueError(f"unknown policy {policy!r}: expected one of {', '.join(POLICIES)}, or a callable")


def _checked(indices: Iterable[int], count: int) -> tuple[int, ...]:
    if not isinstance(indices, Iterable):
        raise TypeError(f"the policy function returned {kind_of(indices)}: expected the indices of activations")
    selected = set()
    for i in indices:
        if not hasattr(i, "__index__") or not 0 <= operator.index(i) < count:
            raise ValueError(f"the policy selected activation {quoted(i)}: expected 0 to {count - 1}")
        selected.add(operator.index(i))
    return tuple(sorted(selected))
