"""FlashNeuron's tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from statistics import mean

from fastio.offload.stores.endurance import DriveWear
from fastio_bench.contend.modelled import PAST, THROUGH
from fastio_bench.contend.training import TO_DISK, TO_HOST
from fastio_bench.papers import flashneuron_networks, gpu_layers, gpu_speed
from fastio_bench.papers.capacity import largest_as_fast
from fastio_bench.papers.flashneuron_networks import Network
from fastio_bench.papers.gpu_speed import FP16, Codec
from fastio_bench.papers.offload_simulated import V100_HOST, V100_SSD, Machine, workload
from fastio_bench.papers.rows import stored
from fastio_bench.papers.rows.row import DEVICE, NOTHING, Row, cell

_NAME = "FlashNeuron"
_CONTEND = "fastio-bench contend"
_SPEED = "a V100's speed at each batch as published for ResNet-50 (MXNet) and BERT-Large (NVIDIA), not measured here"
_LAYER = "a V100's times by batch as published (Baidu DeepBench), not measured here; none of BN and BMM"
_LARGEST = "fastio-bench offload --largest --device simulated"
_SSD_BANDWIDTH = 3.0e9  # bytes/s: sustained writes of one PM1725b, section 4.2
_DOLLARS = {"DRAM": 3.6, "SSD": 0.102}  # a GB in September 2020, section 4.2
_PM1725B = DriveWear(3_300_000_000 // 2, 1.0, 8_000_000_000_000)  # section 3.4: half of a second's traffic writes


def ssds() -> int:
    """The least number of SSDs with which the largest batch that is as fast as plain is that with host memory."""
    asked = _as_fast(V100_HOST.channel_bandwidth)
    return next(count for count in range(1, 17) if _as_fast(min(count * _SSD_BANDWIDTH, 13.0e9)) >= asked)


def _as_fast(bandwidth: float) -> int:
    machine = replace(V100_SSD, channel_bandwidth=bandwidth)
    return largest_as_fast(partial(workload, machine), machine.memory, slack=0.02, limit=1 << 14)


def _plain_batch(own: Network) -> float:
    return own.plain_batch


def _larger(own: Network) -> float:
    return own.largest_batch / own.plain_batch


def _most_gain(own: Network) -> float:
    return own.most_gain


def _gain(of: Callable[[Iterable[float]], float], machine: Machine = V100_SSD, codec: Codec = FP16) -> float:
    return of([one.gain for one in gpu_speed.best(machine, codec)])


def _csr_over_none() -> float:
    csr, whole = gpu_speed.best(codec=gpu_speed.CSR), gpu_speed.best(codec=gpu_speed.NO_CODEC)
    return 100 * mean((100 + own.gain) / (100 + other.gain) - 1 for own, other in zip(csr, whole, strict=True))


def _most_layer_gain(own: gpu_layers.Layer) -> float:
    return own.most_gain


def _layer_gain(own: gpu_layers.Layer) -> float:
    return own.gain(own.best_batch)


def _own_gain(number: int) -> float:
    return gpu_speed.best()[number].gain


def _larger_best(number: int) -> float:
    own = gpu_speed.best()[number]
    return own.batch / own.plain_batch


def _half_gain(machine: Machine) -> float:
    return gpu_speed.best_in_half_precision(machine).gain


def cost() -> float:
    """How many times the bytes that host memory has an SSD has for the same money, at the paper's prices."""
    return _DOLLARS["DRAM"] / _DOLLARS["SSD"]


def endurance_days() -> float:
    """The days that one of the paper's SSDs lasts, half of its traffic writes, at the rate of its data sheet."""
    return _PM1725B.lifetime_days


def rows() -> list[Row]:
    """All of them, in the paper's order."""
    bars = "bars without numbers"
    return [
        Row(_NAME, "tables 1-2", "hardware and networks", by=NOTHING),
        *(
            Row(_NAME, "table 3", f"{own.name}: the largest batch of plain training",
                cell("flashneuron-3", own.name, 1), partial(_plain_batch, own))
            for own in flashneuron_networks.every()
        ),
        *(
            Row(_NAME, "table 3", f"{own.name}: the largest batch that runs over plain's, x",
                cell("flashneuron-3", own.name, 5), partial(_larger, own),
                reason="no workspaces, no fragments: at most so many")
            for own in flashneuron_networks.every()
        ),
        *(
            Row(_NAME, "table 3", f"{own.name}: the same, run on a scaled network and device, x",
                cell("flashneuron-3", own.name, 5), stored=stored.largest(own.name, "batch"), line=_LARGEST, by=DEVICE,
                reason="less deep, so one layer's working memory is more of the whole than in theirs")
            for own in flashneuron_networks.every()
        ),
        *(
            Row(_NAME, "table 3", f"{own.name}: the batch with the best throughput over plain's, x",
                cell("flashneuron-3", own.name, 3), partial(_larger_best, number), reason=_SPEED)
            for number, own in enumerate(flashneuron_networks.every())
        ),
        Row(_NAME, "table 3", "HBMP: the largest batch that runs over plain's, x", cell("flashneuron-3", "HBMP", 5),
            reason="the paper gives no widths: with 600 units each way, as published, an example of 100 words keeps "
            "69 MB in 24 layers, so plain training would have room for 200, not for the paper's 20"),
        Row(_NAME, "table 4", "others' queries beside training, to the SSD: delay, %", cell("flashneuron-4", "50", 5),
            stored=stored.delayed(TO_DISK), line=_CONTEND, reason="ours are copies in memory"),
        Row(_NAME, "table 4", "the same, to host memory", cell("flashneuron-4", "50", 3),
            stored=stored.delayed(TO_HOST), line=_CONTEND, reason="ours are copies in memory"),
        Row(_NAME, "figure 1", "a drawing", by=NOTHING),
        *(
            Row(_NAME, "figure 2", f"{own.name}, {times} x plain's batch: what is kept for backward, % of memory (the "
                "paper: most of it)", None, partial(own.kept_share, times),
                reason=f"{bars}; else weights, their gradients and states, and a block's gradients")
            for own in flashneuron_networks.every() for times in (1, 8)
        ),
        *(
            Row(_NAME, "figure 3", f"{own.network}, {own.name}: throughput at any batch over plain's batch, at most x",
                None, partial(_most_layer_gain, own), reason=f"{bars}; {_LAYER}")
            for own in gpu_layers.LAYERS
        ),
        Row(_NAME, "figure 4", "training to host memory beside others: throughput kept at worst, %", None,
            stored=stored.kept("training-modelled", f"offload {THROUGH}"), line=f"{_CONTEND} --device simulated",
            by=DEVICE, reason=bars),
        Row(_NAME, "figures 5-7", "drawings", by=NOTHING),
        Row(_NAME, "figure 8", "throughput at the best batch over plain training's, SSD, at most +%",
            cell("flashneuron-8", "SSD", 1), partial(_gain, max), reason=f"FP16 alone; {_SPEED}"),
        Row(_NAME, "figure 8", "the same with FP16 alone, on average +%", 21.41,
            partial(_gain, mean), reason=f"three of their four networks; {_SPEED}"),
        Row(_NAME, "figure 8", "the same with CSR alone, on average +%", cell("flashneuron-8", "SSD, CSR alone", 1),
            partial(_gain, mean, codec=gpu_speed.CSR),
            reason="59 % zeros in all that ReLUs made, half of what CNNs keep: the middle of the paper's 43 to 75 %; "
            f"{_SPEED}"),
        Row(_NAME, "figure 8", "the same with CSR alone over no codec, on average +%", None, _csr_over_none,
            reason=f"as before; the paper's 7.14 % may be this; {_SPEED}"),
        Row(_NAME, "figure 8", "the same to host memory, at most +%", cell("flashneuron-8", "memory", 1),
            partial(_gain, max, V100_HOST),
            reason=f"ResNet-50's speed, and so ours, grows on at batches where theirs no longer does; {_SPEED}"),
        *(
            Row(_NAME, "figure 8", f"{own.name}: throughput at the best batch over plain training's, SSD, +%", None,
                partial(_own_gain, number), reason=f"{bars}; {_SPEED}")
            for number, own in enumerate(flashneuron_networks.every())
        ),
        *(
            Row(_NAME, "figure 8", f"{own.name}: the same if all transfers hide, the GPU as busy at every batch, +%",
                None, partial(_most_gain, own),
                reason="in single precision; what is gained even then")
            for own in flashneuron_networks.every()
        ),
        *(
            Row(_NAME, "figure 9", f"{own.network}, {own.name}: throughput at batch {own.best_batch} over "
                f"{own.plain_batch}, x", None, partial(_layer_gain, own), reason=f"{bars}; {_LAYER}")
            for own in gpu_layers.LAYERS
        ),
        *(
            Row(_NAME, "figure 10", f"half precision: throughput over plain training's, {to}, +%", theirs,
                partial(_half_gain, machine), reason=f"BERT-XLarge alone; {_SPEED}")
            for to, theirs, machine in (("SSD", 8.04, V100_SSD), ("host memory", 22.98, V100_HOST))
        ),
        *(
            Row(_NAME, "figure 11", f"block addresses of an iteration: {what}, % (the paper: all)", None,
                stored=stored.in_order(direction), line="fastio-bench store", reason="a plot without numbers")
            for direction, what in (
                ("write", "writes that begin where the one before ended"),
                ("read", "activations read that lie below the one before"),
            )
        ),
        *(
            Row(_NAME, "figure 12", f"training to {to} beside others: throughput kept at worst, %", theirs,
                stored=stored.kept("training-modelled", f"offload {way}"), line=f"{_CONTEND} --device simulated",
                by=DEVICE)
            for to, theirs, way in (("the SSD", 92.0, PAST), ("host memory", 32.2, THROUGH))
        ),
        *(
            Row(_NAME, "figure 12", f"the same on the CPU, to {to}", theirs,
                stored=stored.kept("training", way), line=_CONTEND,
                reason="here plain training lies in host memory, too")
            for to, theirs, way in (("the disk", 92.0, TO_DISK), ("host memory", 32.2, TO_HOST))
        ),
        Row(_NAME, "figure 13", "others' pace beside training to the disk, % of that alone",
            stored=stored.kept("hogs", TO_DISK), line=_CONTEND, reason=f"the paper's are {bars}"),
        Row(_NAME, "figure 14", "others' slowest queries of 100 beside training, to the SSD: delay, %",
            cell("flashneuron-4", "99", 5), stored=stored.delayed(TO_DISK, 99), line=_CONTEND,
            reason="table 4 has the plot's numbers; ours are copies in memory"),
        Row(_NAME, "section 3.4", "days until an SSD's rated writes are used up", 307.0, endurance_days),
        Row(_NAME, "section 4.2", "cost: an SSD's bytes over memory's for the same money, x", 35.3, cost,
            reason="the paper's prices"),
        Row(_NAME, "section 4.2", "SSDs with which the best batch is that of host memory", None, ssds,
            reason="VGG-16; the paper has two, and says that more would close the gap"),
    ]  # fmt: skip
