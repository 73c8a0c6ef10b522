"""Which activations to move out: one planner for the run, the simulator and the tests. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fastio.offload.planning.flashneuron import flashneuron
from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.optimal import optimal
from fastio.offload.planning.overlap import ActivationProfile, finish_seconds, hides, transfer_seconds
from fastio.offload.planning.vdnn import vdnn_all, vdnn_conv, vdnn_dyn

__all__ = ["POLICIES", "ActivationProfile", "InfeasibleBudget", "Policy", "Schedule", "plan"]

Policy = Callable[[Sequence[ActivationProfile], int, float], Iterable[int]]
"""``policy(blobs, need_bytes, forward_s)`` gives the indices of the blobs to move out, in any order."""

POLICIES = ("all", "flashneuron", "optimal", "vdnn-all", "vdnn-conv", "vdnn-dyn", "fastensor")


@dataclass(frozen=True)
class Schedule:
    """What to move out.

    ``selected`` are indices of blobs, ascending, that is in forward order. ``transfer_s`` is the sum of their transfer
    times as stored; ``finish_s`` is when the last of them is out, from the start of the forward pass. ``status`` is
    "fits" where that hides behind the forward pass (under ``strict_paper``: where the sum does) and "delayed" where the
    schedule runs, but slower than without offload.
    """

    selected: tuple[int, ...]
    transfer_s: float
    finish_s: float
    status: Literal["fits", "delayed"]


def plan(
    blobs: Sequence[ActivationProfile],
    need_bytes: int,
    forward_s: float,
    policy: str | Policy = "flashneuron",
    strict_paper: bool = False,
) -> Schedule:
    """Choose what to move out so that at least ``need_bytes`` are freed.

    ``need_bytes`` is the blobs, plus what else is resident, less the memory there is; 0 or less is no need:
    "flashneuron", "optimal" and "vdnn-dyn" then move nothing, the static policies what they always move.
    ``forward_s`` is the forward pass without I/O. Policies, besides a callable:

    - "flashneuron" and "optimal": see their modules.
    - "all": every blob. "fastensor": every blob, and synchronously (Fastensor, sections 4-5), so none of it hides.
    - "vdnn-all", "vdnn-conv", "vdnn-dyn": by ``ActivationProfile.kind``, see :mod:`fastio.offload.planning.vdnn`.

    Raises InfeasibleBudget where the policy cannot free ``need_bytes``, and ValueError for an unknown policy, a
    negative ``forward_s`` or a callable's index that is no blob's.
    """
    if not 0 <= forward_s < math.inf:
        raise ValueError(f"forward_s is {forward_s}; a time is finite and 0 or more")
    total = sum(blob.nbytes for blob in blobs)
    if total < need_bytes:
        cure = "make the budget larger or the batch smaller"
        raise InfeasibleBudget("moving out every activation", need_bytes, total, cure)
    selected = _select(blobs, need_bytes, forward_s, policy, strict_paper)
    got = sum(blobs[i].nbytes for i in selected)
    if got < need_bytes:
        cure = f"use policy 'all', which moves {total}, or make the budget larger"
        raise InfeasibleBudget(f"what policy {policy_name(policy)!r} moves out", need_bytes, got, cure)
    transfer_s = transfer_seconds(blobs, selected)
    if policy == "fastensor":
        status: Literal["fits", "delayed"] = "delayed" if transfer_s > 0 else "fits"
        return Schedule(selected, transfer_s, forward_s + transfer_s, status)
    status = "fits" if hides(blobs, selected, forward_s, strict_paper) else "delayed"
    return Schedule(selected, transfer_s, finish_seconds(blobs, selected), status)


def policy_name(policy: str | Policy) -> str:
    """What a policy is called: a callable by its own name, or its type's."""
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)


def _select(
    blobs: Sequence[ActivationProfile], need_bytes: int, forward_s: float, policy: str | Policy, strict_paper: bool
) -> tuple[int, ...]:
    if not isinstance(policy, str):
        return _checked(policy(blobs, need_bytes, forward_s), len(blobs))
    if policy in ("all", "fastensor"):
        return tuple(range(len(blobs)))
    if policy == "flashneuron":
        return flashneuron(blobs, need_bytes, forward_s, strict_paper)
    if policy == "optimal":
        return optimal(blobs, need_bytes, forward_s, strict_paper)
    if policy == "vdnn-all":
        return vdnn_all(blobs)
    if policy == "vdnn-conv":
        return vdnn_conv(blobs)
    if policy == "vdnn-dyn":
        return vdnn_dyn(blobs, need_bytes)
    raise ValueError(f"policy {policy!r} is none of {', '.join(POLICIES)}, nor a callable")


def _checked(indices: Iterable[int], count: int) -> tuple[int, ...]:
    selected = tuple(sorted(set(indices)))
    for i in selected:
        if not 0 <= i < count:
            raise ValueError(f"the policy selected blob {i}; there are {count}, from 0 to {count - 1}")
    return selected
