"""The largest network and batch in the same memory, beside Fastensor's table 12 and FlashNeuron's table 3. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fastio_bench.offload.training_ways import PLAIN
from fastio_bench.papers import figures
from fastio_bench.papers.beside import Question, Row, figure, found, over, trained
from fastio_bench.report.documents import Document
from fastio_bench.report.table import CALIBRATED, MEASURED, PAPER, SIMULATED

_THEIR_PLAIN, _BEST, _SSDS = "No_offload", "Fastensor_wr", "FlashNeuron's V100, SSDs"


def _their_depths() -> Iterator[Row]:
    (table,) = figures.of("Fastensor, table 12")
    layers = {str(tool): figure(most) for tool, most, _ in table.rows}
    plain, own = layers[_THEIR_PLAIN], layers[_BEST]
    yield [PAPER, "ViT-H/14, batch 64", _BEST, plain, own, over(own, plain)]


def _our_depths(document: Document) -> Iterator[Row]:
    depths = {one["way"]: one["depth"] for one in found(document, "depths")}
    limit = document.settings.get("memory_limit")
    what = trained(document) + (f", {limit >> 20:,} MiB" if limit else "")
    for way, depth in depths.items():
        if way != PLAIN:
            yield [MEASURED, what, way, depths.get(PLAIN), depth, over(depth, depths.get(PLAIN))]


def _their_batches() -> Iterator[Row]:
    (table,) = figures.of("FlashNeuron, table 3")
    for network, _, _, best, _, largest in table.rows:
        yield [PAPER, network, best, largest]


def _our_batches(document: Document) -> Iterator[Row]:
    capacities = (document.findings.get("simulated") or {}).get("capacities", ())
    ways = {one["way"]: one for one in capacities if one["machine"] == _SSDS}
    plain = ways.get("plain", {})
    for way in ("flashneuron", "flashneuron, fp16"):
        if way in ways:
            ratios = (over(ways[way][key], plain.get(key)) for key in ("as_fast", "runs"))
            yield [SIMULATED, f"VGG-16, {way}", *ratios]
    for one in (document.findings.get("calibrated") or {}).get("rows", ()):
        yield [CALIBRATED, one["network"], over(one["batch"], one["plain_batch"]), None]


QUESTIONS = (
    Question(
        "depths",
        "The deepest network that trains in the memory given",
        ("what trains", "way", "plain, layers*", "offloaded, layers*", "x plain*"),
        "Fastensor, table 12",
        "the paper's epoch then takes 197,786 s, with torch.save 474,846",
        _our_depths,
        _their_depths,
    ),
    Question(
        "batches",
        "Batches with FlashNeuron on its V100 and SSDs, over those of plain training",
        ("network", "with the best throughput, x plain*", "largest that runs, x plain*"),
        "FlashNeuron, table 3",
        "simulated: the largest batch that is as fast as plain, and the largest that runs, which one layer's working "
        "set bounds; the paper's networks have many more layers. Calibrated: fitted to the paper's",
        _our_batches,
        _their_batches,
    ),
)
