"""Figures of the vDNN paper (MICRO 2016), as its text gives them."""

from __future__ import annotations

from fastio_bench.report.table import PAPER, ResultTable

NAME = "vDNN"


def exhibits() -> list[ResultTable]:
    """The paper's tables, and what it says of its figures."""
    machine = "NVIDIA Titan X of 12 GB, host memory by PCIe"
    return [
        ResultTable(
            "vdnn-11",
            "GPU memory saved, average over six networks",
            ("way", "of the most %*", "of the average %*"),
            [
                ["vDNN-all, memory-optimal algorithms", 73, 93],
                ["vDNN-all, performance-optimal algorithms", 64, 90],
                ["vDNN-conv, performance-optimal algorithms", 52, 76],
                ["vDNN-dyn", 49, 69],
            ],
            PAPER,
            f"{NAME}, figure 11",
            f"from section V-A; {machine}",
        ),
        ResultTable(
            "vdnn-12",
            "What is offloaded to host memory",
            ("network", "way", "GB*"),
            [["VGG-16, batch 256", "vDNN-all, the most of all that were measured", "up to 16"]],
            PAPER,
            f"{NAME}, figure 12",
            "from section V-A, which gives no other figure of that plot; of the same network at batch 128 it says that "
            f"vDNN-all with memory-optimal algorithms keeps 4.8 GB and is 61 % slower; {machine}",
        ),
        ResultTable(
            "vdnn-13",
            "Bandwidth of the GPU's memory that VGG-16's convolutions use, and what offloading adds",
            ("what", "GB/s*", "% of the peak*"),
            [
                ["the peak", 336, 100],
                ["convolutions, forward and backward", "rarely the peak", None],
                ["offloading, at most what PCIe moves", 16, 4.7],
            ],
            PAPER,
            f"{NAME}, figure 13",
            f"from section V-B, the figure itself has no numbers; 16 / 336 is 4.76 %, printed as 4.7 %; {machine}",
        ),
        ResultTable(
            "vdnn-14",
            "Throughput lost against a GPU with memory for everything",
            ("way", "on average %*", "at most %*"),
            [
                ["vDNN-all, memory-optimal algorithms", 58, 65],
                ["vDNN-conv, memory-optimal algorithms", 55, 63],
                ["vDNN-dyn", 3, 18],
            ],
            PAPER,
            f"{NAME}, figure 14",
            f"from section V-C, which says of vDNN-dyn 97 % of the throughput on average and 82 % at worst; {machine}",
        ),
        ResultTable(
            "vdnn-15",
            "Memory of very deep VGG networks, batch 32",
            ("convolutions", "baseline GB*", "vDNN-dyn on the GPU, at most GB*"),
            [["16", 4.9, None], ["416", 67.1, 4.2]],
            PAPER,
            f"{NAME}, figure 15",
            f"from section V-E, which sees no loss of performance; {machine}",
        ),
    ]
