"""The papers' own figures, as they are printed there, so that what is measured here can stand beside them."""

from __future__ import annotations

from fastio_bench.papers import fastensor, feature_maps, flashneuron, memferry, vdnn
from fastio_bench.report.table import ResultTable

TITLES = {
    fastensor.NAME: "Fastensor, ACM TACO 2023",
    flashneuron.NAME: "FlashNeuron, USENIX FAST 2021",
    vdnn.NAME: "vDNN, IEEE/ACM MICRO 2016",
    memferry.NAME: "MemFerry, a fast and memory efficient offload training framework",
}


def exhibits() -> list[ResultTable]:
    """Every table of every paper."""
    modules = (fastensor, feature_maps, flashneuron, vdnn, memferry)
    return [exhibit for module in modules for exhibit in module.exhibits()]


def of(*sources: str) -> list[ResultTable]:
    """The tables of these sources, as ``Fastensor, table 9``."""
    return [exhibit for exhibit in exhibits() if exhibit.source in sources]
