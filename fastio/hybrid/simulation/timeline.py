"""Simulates an iteration under a plan: a compute stream, two copy engines and the CPU. Pure.

MemFerry, section IV-B, figure 6.

Seconds and bytes. Copies to the GPU and to the host have an engine each, first in, first out. The CPU runs the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastio.hybrid.planning.backward import backward
from fastio.hybrid.planning.backward_prefetch import copies
from fastio.hybrid.planning.costs import BUCKET, DHA, GFGB, LayerCosts, forward_ends
from fastio.hybrid.planning.plan import Plan

COMPUTE, TO_GPU, TO_HOST, UPDATE = LANES = ("compute", "to the GPU", "to the host", "update on the CPU")


@dataclass(frozen=True)
class Span:
    """What a lane does for a layer. ``what``: forward, backward, copy, late copy (DFGB), gradient or update."""

    lane: str
    layer: int
    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A simulated iteration. ``nbytes``: the most memory that parameters and gradients take on the GPU."""

    spans: tuple[Span, ...]
    forward_s: float
    backward_s: float
    iteration_s: float
    nbytes: int


def iterate(
    costs: Sequence[LayerCosts],
    plan: Plan,
    update_s: Sequence[float] | None = None,
    *,
    update_waits: bool = False,
) -> Timeline:
    """Run one iteration. ``update_s``: seconds of the update of each layer, 0 without it.

    A gradient takes as long to the host as its layer's parameters to the GPU. Those in host memory move beside backward
    (see :mod:`fastio.hybrid.planning.backward`); the others follow backward, or are copied beside it if none moves. The
    update begins when backward ends and continues as gradients arrive, in pieces of ``BUCKET`` bytes; with
    ``update_waits`` it begins when all have arrived (ZeRO-Offload).
    """
    layers = range(len(costs))
    ends = forward_ends(costs, plan.modes)
    spans = list(_forward(costs, plan.modes, ends))
    late: dict[int, float] = {}
    for copy in copies(costs, plan.modes, ends):
        late[copy.layer] = copy.end_s
        spans.append(Span(TO_GPU, copy.layer, "late copy", copy.start_s, copy.end_s))
    forward_s = ends[-1] if ends else 0.0
    run = backward(costs, plan.modes, plan.gradients_on_host, forward_s, late)
    spans += [Span(COMPUTE, i, "backward", *span) for i, span in run.computing.items()]
    spans += [Span(TO_HOST, i, "gradient", *span) for i, span in run.moving.items()]
    copying = dict(run.moving)
    engine = run.end_s if run.moving else 0.0
    for i in reversed(layers):
        if i not in plan.gradients_on_host:
            start = max(engine, run.computing[i][1])
            engine = start + costs[i].copy_s
            copying[i] = start, engine
            spans.append(Span(TO_HOST, i, "gradient", start, engine))
    cpu = max((end for _, end in copying.values()), default=0.0) if update_waits else run.end_s
    for i in reversed(layers):
        pieces = max(1, -(-costs[i].nbytes // BUCKET))
        begun, ended = copying[i]
        for piece in range(1, pieces + 1):
            start = max(cpu, ended if piece == pieces else begun + (ended - begun) * piece / pieces)
            cpu = start + (update_s[i] / pieces if update_s is not None else 0.0)
            spans.append(Span(UPDATE, i, "update", start, cpu))
    on_gpu = sum(costs[i].nbytes for i in layers if plan.modes[i] != DHA)
    on_gpu += sum(costs[i].nbytes for i in layers if i not in plan.gradients_on_host) + run.moving_nbytes
    return Timeline(tuple(spans), forward_s, run.end_s - forward_s, max(cpu, run.end_s, engine), on_gpu)


def _forward(costs: Sequence[LayerCosts], modes: Sequence[str], ends: Sequence[float]) -> list[Span]:
    spans, copied = [], 0.0
    for i, (layer, mode, end) in enumerate(zip(costs, modes, ends, strict=True)):
        if mode == GFGB:
            spans.append(Span(TO_GPU, i, "copy", copied, copied + layer.copy_s))
            copied += layer.copy_s
        computed = end - layer.between_s
        took = layer.forward_s if mode == GFGB else layer.forward_dha_s
        spans.append(Span(COMPUTE, i, "forward", computed - took, computed))
    return spans
