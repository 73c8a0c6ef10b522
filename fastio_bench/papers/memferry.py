"""Figures of the MemFerry paper, as its text gives them."""

from __future__ import annotations

from typing import NamedTuple

from fastio_bench.report.table import PAPER, ResultTable

NAME = "MemFerry"
SMALLER, GPT_2, ALL, SIZES = "the smaller models", "GPT-2", "all of the figure", "TransformerXL"
AVERAGE, LEAST, MOST = "average", "least", "most"
_NOT_SAID = "not said"
_SAVED = ("way", "models", "which", "less than", "%*")


class Saved(NamedTuple):
    """By how many percent a way needs less of the GPU's memory, peaks of an iteration."""

    way: str
    models: str
    which: str
    against: str
    percent: float


SAVED = (
    Saved("MemFerry", SMALLER, AVERAGE, "DeepSpeed", 40.1),
    Saved("MemFerry", GPT_2, AVERAGE, _NOT_SAID, 1.4),
    Saved("GO-MemFerry", ALL, AVERAGE, "MemFerry", 17.6),
    Saved("MemFerry", ALL, AVERAGE, _NOT_SAID, 25.4),
    Saved("GO-MemFerry", ALL, AVERAGE, _NOT_SAID, 41.6),
    Saved("MemFerry", _NOT_SAID, MOST, _NOT_SAID, 61.7),
    Saved("GO-MemFerry", _NOT_SAID, MOST, _NOT_SAID, 74.4),
)
"""Figure 12, and what the introduction has as the most."""
SAVED_BY_SIZE = (
    Saved("GO-MemFerry", SIZES, AVERAGE, "DeepSpeed", 21.6),
    Saved("GO-MemFerry", SIZES, LEAST, "DeepSpeed", 18.0),
    Saved("GO-MemFerry", SIZES, MOST, "DeepSpeed", 22.0),
)
"""Figure 13(b)."""


def exhibits() -> list[ResultTable]:
    """The paper's tables, and what it says of its figures."""
    machine = "one NVIDIA A100 or V100 against DeepSpeed's ZeRO-Offload"
    return [
        ResultTable(
            "memferry-9",
            "Training speed over the baselines",
            ("models", "at least x*", "at most x*"),
            [["BERT-base, RoBERTa", 1.217, 1.687], ["BERT-large, GPT-2", 1.071, 1.321]],
            PAPER,
            f"{NAME}, figure 9",
            f"section V gives improvements of 21.7 % to 68.7 % and 7.1 % to 32.1 %, the introduction 1.32 x on "
            f"average and up to 1.68 x: 1.07 to 1.68 x in all; {machine}",
        ),
        ResultTable(
            "memferry-10",
            "GPU utilisation when GPT-2 trains, over that of the baselines",
            ("way", "against", "higher by %*"),
            [["MemFerry", "DeepSpeed", 18.5], ["MemFerry", "native ZeRO-Offload", 1.5]],
            PAPER,
            f"{NAME}, figure 10",
            "from section V-B; the introduction says up to 1.27 x, section III-A that with ZeRO-Offload and GPT-2 the "
            "GPU is busy 63.1 % of the time. Of figure 10(b), the iteration of GO-MemFerry over the reserve factor, it "
            f"says that it falls as more gradients stay on the GPU, in convex curves; {machine}",
        ),
        ResultTable(
            "memferry-11",
            "Training of TransformerXL on one V100 of 32 GB, batch 1",
            ("way", "speed, x the baseline*", "largest model, x DeepSpeed's*"),
            [["MemFerry", 1.12, None], ["GO-MemFerry, all gradients offloaded", "3.4 % less", 1.52]],
            PAPER,
            f"{NAME}, figure 11",
            "from section V-B, which compares with native ZeRO-Offload and DeepSpeed; beyond 2.4B parameters only "
            "GO-MemFerry trains",
        ),
        ResultTable(
            "memferry-12",
            "GPU memory saved",
            _SAVED,
            SAVED,
            PAPER,
            f"{NAME}, figure 12",
            "section V-B's averages, which name a baseline only of the smaller models, and the introduction's most; "
            "there, 20.1 % is GO-MemFerry's average. By the averages of both, GO-MemFerry needs 21.7 % less than "
            f"MemFerry, where 17.6 % is printed; {machine}",
        ),
        ResultTable(
            "memferry-13a",
            "Training speed of TransformerXL over DeepSpeed, batch 8",
            ("parameters", "x*"),
            [["1B", 1.37], ["6.7B", 1.26], ["average", 1.32]],
            PAPER,
            f"{NAME}, figure 13(a)",
            machine,
        ),
        ResultTable(
            "memferry-13b",
            "GPU memory saved as TransformerXL grows from 0.7B to 6.7B, batch 8",
            _SAVED,
            SAVED_BY_SIZE,
            PAPER,
            f"{NAME}, figure 13(b)",
            "from section V-D, which has the most saved between 18 % and 22 % as models grow, and no numbers of "
            f"MemFerry; {machine}",
        ),
    ]
