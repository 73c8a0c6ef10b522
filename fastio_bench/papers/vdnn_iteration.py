"""vDNN's iteration layer by layer (sections III-A and III-B): what is resident, and how long it takes. Pure.

One model for both: an iteration runs in a memory if the largest of its steps does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from fastio.offload.planning.vdnn import POOL, Offloading, find_prefetch_layer, leaves

_FORWARD = 1 / 3  # of an algorithm's time: backward computes the gradients of inputs and of weights


@dataclass(frozen=True)
class Algorithm:
    """A way to compute a layer: seconds of forward plus backward, and the workspace in bytes."""

    time_s: float
    workspace_nbytes: int


@dataclass(frozen=True)
class Layer:
    """A layer: its kind, the bytes of its output, the layers whose outputs it reads, and its algorithms."""

    kind: str
    nbytes: int
    inputs: tuple[int, ...] = ()
    algorithms: tuple[Algorithm, ...] = (Algorithm(0.0, 0),)


@dataclass(frozen=True)
class Configuration:
    """What leaves, and the index of the algorithm for each layer."""

    offloading: Offloading
    algorithms: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """A layer's forward or backward step: the bytes that are resident, and those that travel beside its compute.

    ``awaited_nbytes`` travel before it: an input that no earlier step prefetched.
    """

    layer: int
    is_backward: bool
    nbytes: int
    moved_nbytes: int = 0
    awaited_nbytes: int = 0


@dataclass(frozen=True)
class Iteration:
    """Bytes resident at most and on average over its steps, bytes that leave, and seconds."""

    peak_nbytes: int
    average_nbytes: float
    moved_nbytes: int
    seconds: float


def fastest(layers: Sequence[Layer]) -> tuple[int, ...]:
    """Return the performance-optimal algorithms (p)."""
    return tuple(min(range(len(n.algorithms)), key=lambda a: n.algorithms[a].time_s) for n in layers)


def least(layers: Sequence[Layer]) -> tuple[int, ...]:
    """Return the memory-optimal algorithms (m)."""
    return tuple(min(range(len(n.algorithms)), key=lambda a: n.algorithms[a].workspace_nbytes) for n in layers)


def iteration(
    layers: Sequence[Layer], configuration: Configuration, bandwidth: float, counted: Sequence[str] | None = None
) -> Iteration:
    """Return an iteration with transfers of ``bandwidth`` bytes/s. Of steps, memory counts layers of these kinds only.

    Compute and memory streams are synchronised at the end of each layer that moves something (figure 9): a step takes
    as long as the longer of both.
    """
    steps = resident(layers, configuration)
    seconds = 0.0
    for step in steps:
        whole_s = layers[step.layer].algorithms[configuration.algorithms[step.layer]].time_s
        compute_s = whole_s * (1 - _FORWARD if step.is_backward else _FORWARD)
        seconds += step.awaited_nbytes / bandwidth + max(compute_s, step.moved_nbytes / bandwidth)
    sizes = [step.nbytes for step in steps if counted is None or layers[step.layer].kind in counted]
    moved = sum(step.moved_nbytes for step in steps if not step.is_backward)
    return Iteration(max(sizes), mean(sizes), moved, seconds)


def last_consumers(inputs: Sequence[Sequence[int]]) -> list[int | None]:
    """Return, for each layer, the last layer of the forward pass that reads its output; None if no layer does.

    ``inputs[n]`` are the layers whose outputs layer n reads, all before n (a join reads several; at a fork several
    layers read one). In a fixed order this equals the reference counts of figure 3: an output may leave when its last
    reader is done, not its first.
    """
    last: list[int | None] = [None] * len(inputs)
    for layer, reads in enumerate(inputs):
        for producer in reads:
            if producer >= layer:
                raise ValueError(f"layer {layer} reads the output of layer {producer}: expected an earlier layer")
            last[producer] = layer
    return last


def resident(layers: Sequence[Layer], configuration: Configuration) -> list[Step]:
    """Return the steps of an iteration: forward, then backward. Layers without inputs have none.

    Resident are the outputs in memory, the gradients of outputs from their first to their last use (backward), and the
    workspace of the layer. What is offloaded is gone when the next layer starts: after its last reader (figure 3). What
    is prefetched during a backward step is there from the start of that step.

    A layer's activation works in place: its backward needs the output and the output's gradient, which becomes that of
    the layer's own result. cuDNN's backward of a convolution needs no output, so its input's gradient comes when the
    output has gone; that of a pooling needs both.
    """
    last = last_consumers([layer.inputs for layer in layers])
    ends = [b if reader is None else reader for b, reader in enumerate(last)]
    leaving = {b for layer in layers if leaves(layer.kind, configuration.offloading) for b in layer.inputs}
    kinds = [layer.kind for layer in layers]
    sizes = [layer.nbytes for layer in layers]
    chosen = zip(layers, configuration.algorithms, strict=True)
    workspaces = [layer.algorithms[a].workspace_nbytes for layer, a in chosen]
    sent = [[b for b in set(layer.inputs) if b in leaving and ends[b] == n] for n, layer in enumerate(layers)]
    steps = []
    for n in range(len(layers)):
        here = sum(sizes[b] for b in range(n + 1) if b not in leaving or ends[b] >= n)
        steps.append(Step(n, False, here + workspaces[n], sum(sizes[b] for b in sent[n])))
    out = [bool(each) for each in sent]  # those whose input the last reader sent away
    back = [False] * len(layers)
    present = set(range(len(layers))) - leaving
    for n in reversed(range(len(layers))):
        awaited = _bring(n, layers, present) if out[n] and not back[n] else 0
        ahead = find_prefetch_layer(n, kinds, out, back)
        moved = 0 if ahead is None else _bring(ahead, layers, present)
        for fetched in (n,) if ahead is None else (n, ahead):
            back[fetched] = True
        outputs = sum(sizes[b] for b in present if b < n)
        own = sizes[n] if n in present else 0
        given = sum(sizes[b] for b in range(n + 1) if layers[b].inputs and (ends[b] > n or b == n))
        made = sum(sizes[b] for b in range(n) if layers[b].inputs and ends[b] == n)
        beside = own + made if kinds[n] == POOL else max(own, made)
        steps.append(Step(n, True, outputs + given + beside + workspaces[n], moved, awaited))
    return [step for step in steps if layers[step.layer].inputs]


def _bring(layer: int, layers: Sequence[Layer], present: set[int]) -> int:
    """Bring a layer's inputs back; return their bytes."""
    missing = set(layers[layer].inputs) - present
    present.update(missing)
    return sum(layers[b].nbytes for b in missing)
