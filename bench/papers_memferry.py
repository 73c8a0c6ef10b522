"""Figures of the MemFerry paper, as its text gives them."""

from __future__ import annotations

from fastio.bench.exhibit import PAPER, Exhibit

NAME = "MemFerry"


def exhibits() -> list[Exhibit]:
    """The paper's tables, and what it says of its figures."""
    machine = "one NVIDIA A100 or V100 against DeepSpeed's ZeRO-Offload"
    return [
        Exhibit(
            "memferry-9",
            "Training speed over the baselines",
            ("models", "at least x*", "at most x*"),
            [["BERT-base, RoBERTa", 1.217, 1.687], ["BERT-large, GPT-2", 1.071, 1.321]],
            PAPER,
            f"{NAME}, figure 9",
            f"section V gives improvements of 21.7 % to 68.7 % and 7.1 % to 32.1 %, the introduction 1.32 x on "
            f"average and up to 1.68 x: 1.07 to 1.68 x in all; {machine}",
        ),
        Exhibit(
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
        Exhibit(
            "memferry-11",
            "Training of TransformerXL on one V100 of 32 GB, batch 1",
            ("way", "speed, x the baseline*", "largest model, x DeepSpeed's*"),
            [["MemFerry", 1.12, None], ["GO-MemFerry, all gradients offloaded", "3.4 % less", 1.52]],
            PAPER,
            f"{NAME}, figure 11",
            "from section V-B, which compares with native ZeRO-Offload and DeepSpeed; beyond 2.4B parameters only "
            "GO-MemFerry trains",
        ),
        Exhibit(
            "memferry-12",
            "GPU memory saved against ZeRO-Offload",
            ("way", "on average %*", "at most %*"),
            [["MemFerry", 25.4, 61.7], ["GO-MemFerry", 41.6, 74.4]],
            PAPER,
            f"{NAME}, figure 12",
            f"section V's averages and the introduction's most; the introduction says 20.1 % on average of "
            f"GO-MemFerry. It trains models 1.52 x as large (figure 11); {machine}",
        ),
        Exhibit(
            "memferry-13",
            "Training speed of TransformerXL over ZeRO-Offload, batch 8",
            ("parameters", "x*"),
            [["1B", 1.37], ["6.7B", 1.26], ["average", 1.32]],
            PAPER,
            f"{NAME}, figure 13",
            machine,
        ),
    ]
