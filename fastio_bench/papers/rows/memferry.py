"""MemFerry's figures, by the models of its machines. It has no tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import mean

from fastio.hybrid.simulation.machines import A100, V100, costs
from fastio_bench.papers import memferry_simulated
from fastio_bench.papers.memferry_gradients import both
from fastio_bench.papers.memferry_memory import less, less_than_deepspeed, nbytes
from fastio_bench.papers.memferry_networks import A100_NETWORKS
from fastio_bench.papers.memferry_simulated import MEMFERRY, OFFLOADED, ZERO, Simulated
from fastio_bench.papers.memferry_utilisation import busy
from fastio_bench.papers.rows.row import NOTHING, Row, cell

_NAME = "MemFerry"
_SMALL = ("BERT-base", "RoBERTa")
_RECOMPUTED = "parameters, gradients and recomputed activations"
_KEPT = "parameters, gradients and all activations"
_AGAINST = (
    "theirs is against DeepSpeed with its buffers; no parameter on the GPU at all would save 45 % on the smaller "
    "models, at 0.4 of the speed"
)
_BUFFER = (
    "5e8 elements, its default, in the place of all gradients; parameters, that buffer, recomputed activations; the "
    "paper does not give its settings"
)
_PARALLEL = "ours gives each GPU a link of its own, and leaves out what GPUs exchange"
_HYBRID = "fastio-bench hybrid"
every = cache(memferry_simulated.every)


def _of(name: str, machine: str = A100.name) -> Simulated:
    return next(one for one in every() if one.network.name == name and one.machine.name == machine)


def _speed(pick: Callable[[Iterable[float]], float], names: Sequence[str]) -> float:
    return pick(_of(name).speed_up(MEMFERRY) for name in names)


@cache
def _short(name: str) -> Simulated:
    """The network on the A100, with sequences of 128."""
    return memferry_simulated.simulated(A100, replace(_of(name).network, sequence=128))


def _over_deepspeed(pick: Callable[[Iterable[float]], float], way: str, names: Sequence[str]) -> float:
    return pick([less_than_deepspeed(_of(name), way) for name in names])


def in_place(kind: int) -> float:
    """Forward with parameters read in host memory over copying them first, BERT-base's layer of that index."""
    layer = costs(A100_NETWORKS[0].layers()[kind], A100)
    return layer.forward_dha_s / (layer.copy_s + layer.forward_s)


@cache
def _on(name: str, gpus: int) -> Simulated:
    """One of several GPUs that share the batch."""
    network = next(network for network in A100_NETWORKS if network.name == name)
    return memferry_simulated.simulated(A100, replace(network, batch=network.batch // gpus))


def parallel(name: str, gpus: int) -> float:
    """An iteration of data parallelism over one on a single GPU, the batch of all being the same."""
    return _on(name, gpus).timelines[MEMFERRY].iteration_s / _on(name, 1).timelines[MEMFERRY].iteration_s


def _busier() -> float:
    one = _of("GPT-2-medium")
    return 100 * (busy(one.timelines[MEMFERRY]) / busy(one.timelines[ZERO]) - 1)


def _larger() -> float:
    one = _of("Transformer-XL 2.4B", V100.name)
    return nbytes(one, ZERO) / nbytes(one, OFFLOADED)


def rows() -> list[Row]:
    """All of them, in the paper's order."""
    large = [network.name for network in A100_NETWORKS if network.name.startswith("Transformer-XL")]
    shown = [network.name for network in A100_NETWORKS if network.name not in large]
    bars = "bars without numbers: the paper says which is shorter"
    return [
        Row(_NAME, "figures 1-2", "drawings", by=NOTHING),
        Row(_NAME, "figure 3", "BERT's embedding: forward in place over copied first, x (the paper: much shorter)",
            None, lambda: in_place(0), reason=bars),
        Row(_NAME, "figure 3", "BERT's first matrix: forward in place over copied first, x (the paper: longer)",
            None, lambda: in_place(2), reason=bars),
        Row(_NAME, "figures 4-8", "drawings", by=NOTHING),
        *(
            Row(_NAME, "figure 9", f"{names[0]}, {names[1]}: speed over ZeRO-Offload, at {which} x",
                cell("memferry-9", key, place), partial(_speed, pick, names), line=_HYBRID)
            for names, key in (
                (_SMALL, "BERT-base, RoBERTa"), (("BERT-large", "GPT-2-medium"), "BERT-large, GPT-2")
            )
            for place, which, pick in ((1, "least", min), (2, "most", max))
        ),
        Row(_NAME, "figure 10", "GPT-2: GPU busy, MemFerry over DeepSpeed, +%", 18.5, _busier, line=_HYBRID,
            reason="ours over ZeRO-Offload's schedule"),
        Row(_NAME, "figure 11", "V100, batch 1: speed over the baseline, x", 1.12,
            lambda: _of("Transformer-XL 2.4B", V100.name).speed_up(MEMFERRY), line=_HYBRID),
        Row(_NAME, "figure 11", "the largest model over DeepSpeed's, GO-MemFerry, x", 1.52, _larger, line=_HYBRID,
            reason=_RECOMPUTED),
        Row(_NAME, "figure 11", "V100, batch 1: speed over the baseline, GO-MemFerry, least x", 0.966,
            lambda: min(one.speed_up(OFFLOADED) for one in every() if one.machine is V100), line=_HYBRID,
            reason="gradients are copied beside backward"),
        Row(_NAME, "section IV-D", "gradients written by kernels over copied beside backward: an iteration, least x",
            None, lambda: min(written_s / one.timelines[OFFLOADED].iteration_s for one, written_s in both()),
            line=_HYBRID, reason="on an A100, a V100 and an H100: so Hybrid copies them"),
        Row(_NAME, "figure 12", "GPU memory saved, smaller models, MemFerry, %", 40.1,
            lambda: mean(less(_of(name), MEMFERRY) for name in _SMALL), line=_HYBRID,
            reason=f"{_RECOMPUTED}; {_AGAINST}"),
        Row(_NAME, "figure 12", "GPU memory saved, MemFerry, %", 25.4,
            lambda: mean(less(_of(name), MEMFERRY) for name in shown), line=_HYBRID,
            reason=f"{_RECOMPUTED}; {_AGAINST}"),
        Row(_NAME, "figure 12", "GPU memory saved, GO-MemFerry, %", 41.6,
            lambda: mean(less(_of(name), OFFLOADED) for name in shown), line=_HYBRID, reason=_RECOMPUTED),
        Row(_NAME, "figure 12", "GPU memory saved, GO-MemFerry, sequences of 128 in all four networks, %", 41.6,
            lambda: mean(less(_short(name), OFFLOADED) for name in shown), line=_HYBRID,
            reason=f"{_RECOMPUTED}; the paper gives no lengths"),
        *(
            Row(_NAME, "figure 12", f"GPU memory saved over DeepSpeed with its buffer, {way}, {which} %", theirs,
                partial(_over_deepspeed, pick, way, shown), line=_HYBRID, reason=_BUFFER)
            for way, average, most in ((MEMFERRY, 25.4, 61.7), (OFFLOADED, 41.6, 74.4))
            for which, pick, theirs in (("on average", mean, average), ("at most", max, most))
        ),
        Row(_NAME, "figure 13", "TransformerXL 1B: speed over DeepSpeed, x", cell("memferry-13a", "1B", 1),
            lambda: _of("Transformer-XL 1.0B").speed_up(MEMFERRY), line=_HYBRID),
        Row(_NAME, "figure 13", "TransformerXL 6.7B: speed over DeepSpeed, x", cell("memferry-13a", "6.7B", 1),
            lambda: _of("Transformer-XL 6.7B").speed_up(MEMFERRY), line=_HYBRID),
        Row(_NAME, "figure 13", "TransformerXL: GPU memory saved, GO-MemFerry, %", 21.6,
            lambda: mean(less(_of(name), OFFLOADED, recomputed=False) for name in large), line=_HYBRID, reason=_KEPT),
        Row(_NAME, "figure 14", "TransformerXL 4.3B: an iteration on 8 GPUs over that on one, x", 4.12 / 5.41,
            partial(parallel, "Transformer-XL 4.3B", 8), reason=_PARALLEL),
        Row(_NAME, "figure 14", "TransformerXL 4.3B: speed over DeepSpeed on 8 GPUs, +%", 28.1,
            lambda: 100 * (_on("Transformer-XL 4.3B", 8).speed_up(MEMFERRY) - 1), reason=_PARALLEL),
    ]  # fmt: skip
