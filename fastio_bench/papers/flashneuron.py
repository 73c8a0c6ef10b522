"""Figures of the FlashNeuron paper (FAST 2021), as they are printed there or said in its text."""

from __future__ import annotations

from fastio_bench.report.table import PAPER, ResultTable

NAME = "FlashNeuron"


def exhibits() -> list[ResultTable]:
    """The paper's tables, and what it says of its figures."""
    machine = "NVIDIA V100 of 16 GB, two Samsung PM1725b SSDs; SSD and memory: where tensors are offloaded to"
    return [
        ResultTable(
            "flashneuron-3",
            "Batches: of plain training, with the best throughput, and the largest that runs",
            ("network", "plain*", "best throughput*", "x plain*", "largest that runs*", "x plain, largest*"),
            [
                ["ResNet-1922", 4, 7, 1.75, 56, 14.0],
                ["DenseNet-1001", 4, 8, 2.00, 52, 13.0],
                ["BERT-XLarge", 1, 3, 3.00, 14, 14.0],
                ["HBMP", 20, 36, 1.80, 248, 12.4],
            ],
            PAPER,
            f"{NAME}, table 3",
            machine,
        ),
        ResultTable(
            "flashneuron-8",
            "Training throughput over plain training at the best batch",
            ("way", "gain %*", "which"),
            [
                ["SSD", 37.8, "at most"],
                ["memory", 49.1, "at most"],
                ["memory", 43.9, "on average"],
                ["SSD, CSR alone", 7.14, ""],
                ["SSD, FP16 alone", "21.41", ""],
            ],
            PAPER,
            f"{NAME}, figure 8",
            f"from section 4.2, the figure itself has no numbers; {machine}",
        ),
        ResultTable(
            "flashneuron-12",
            "Training throughput over plain training while others take the memory's bandwidth",
            ("bandwidth taken %", "SSD, gain %*", "memory, gain %*"),
            [
                ["50", "35 or more", "35 or more"],
                ["75 (named 70 elsewhere)", 22.6, 14.0],
                ["90", 20.2, -40.2],
            ],
            PAPER,
            f"{NAME}, figure 12",
            f"from section 4.3.1; the worst loss against running alone is 8 % (SSD) and 67.8 % (memory); {machine}",
        ),
        ResultTable(
            "flashneuron-13",
            "Execution time of data augmentation on the CPU while ResNet-1922 trains on the GPU",
            ("beside training", "what the paper says of the time over that of running alone"),
            [
                ["without offloading", "what the others are held against"],
                ["offloading to the SSD", "a comparable degree of slowdown: it takes little memory bandwidth"],
                ["offloading to memory", "a substantial slowdown: it takes about what 16 lanes of PCIe move"],
            ],
            PAPER,
            f"{NAME}, figure 13",
            "from section 4.3.1, which has no numbers: those are bars of a plot. The task transforms 256 images of "
            f"2048 x 1080 and takes 21, 29 or 36 GB/s of memory bandwidth, named 50, 70 and 90 %; {machine}",
        ),
        ResultTable(
            "flashneuron-4",
            "Latency of BERT queries on the CPU beside training, and the delay over serving only",
            ("percentile", "no offloading s*", "memory s*", "memory, delay %*", "SSD s*", "SSD, delay %*"),
            [
                ["50", 0.736, 0.933, 30.3, 0.746, 4.11],
                ["95", 0.740, 0.944, 30.7, 0.754, 4.35],
                ["99", 0.743, 0.950, 30.9, 0.758, 4.45],
            ],
            PAPER,
            f"{NAME}, table 4",
            f"training itself becomes 1.8 % slower (SSD) and 27.5 % slower (memory); {machine}",
        ),
    ]
