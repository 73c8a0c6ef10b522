"""The papers' own figures, as they are printed there, so that what is measured here can stand beside them."""

from __future__ import annotations

from fastio.bench import papers_fastensor, papers_feature_maps, papers_flashneuron, papers_memferry, papers_vdnn
from fastio.bench.exhibit import Exhibit

TITLES = {
    papers_fastensor.NAME: "Fastensor, ACM TACO 2023",
    papers_flashneuron.NAME: "FlashNeuron, USENIX FAST 2021",
    papers_vdnn.NAME: "vDNN, IEEE/ACM MICRO 2016",
    papers_memferry.NAME: "MemFerry, a fast and memory efficient offload training framework",
}


def exhibits() -> list[Exhibit]:
    """Every table of every paper."""
    modules = (papers_fastensor, papers_feature_maps, papers_flashneuron, papers_vdnn, papers_memferry)
    return [exhibit for module in modules for exhibit in module.exhibits()]


def of(*sources: str) -> list[Exhibit]:
    """The tables of these sources, as ``Fastensor, table 9``."""
    return [exhibit for exhibit in exhibits() if exhibit.source in sources]
