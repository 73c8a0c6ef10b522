"""The papers' own figures, as they are printed there, so that what is measured here can stand beside them."""

from __future__ import annotations

from fastio.bench import papers_fastensor
from fastio.bench.exhibit import PAPER, Exhibit

FLASHNEURON, VDNN, MEMFERRY = "FlashNeuron", "vDNN", "MemFerry"
TITLES = {
    papers_fastensor.NAME: "Fastensor, ACM TACO 2023",
    FLASHNEURON: "FlashNeuron, USENIX FAST 2021",
    VDNN: "vDNN, IEEE/ACM MICRO 2016",
    MEMFERRY: "MemFerry, a hybrid of computing on the GPU and on host memory",
}


def exhibits() -> list[Exhibit]:
    """Every table of every paper."""
    return [*papers_fastensor.exhibits(), *_flashneuron(), *_vdnn(), *_memferry()]


def of(*sources: str) -> list[Exhibit]:
    """The tables of these sources, as ``Fastensor, table 9``."""
    return [exhibit for exhibit in exhibits() if exhibit.source in sources]


def _flashneuron() -> list[Exhibit]:
    machine = "NVIDIA V100 of 16 GB, two Samsung PM1725b SSDs; SSD and memory: where tensors are offloaded to"
    return [
        Exhibit(
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
            f"{FLASHNEURON}, table 3",
            machine,
        ),
        Exhibit(
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
            f"{FLASHNEURON}, figure 8",
            f"from section 4.2, the figure itself has no numbers; {machine}",
        ),
        Exhibit(
            "flashneuron-12",
            "Training throughput over plain training while others take the memory's bandwidth",
            ("bandwidth taken %", "SSD, gain %*", "memory, gain %*"),
            [
                ["50", "35 or more", "35 or more"],
                ["75 (named 70 elsewhere)", 22.6, 14.0],
                ["90", 20.2, -40.2],
            ],
            PAPER,
            f"{FLASHNEURON}, figure 12",
            f"from section 4.3.1; the worst loss against running alone is 8 % (SSD) and 67.8 % (memory); {machine}",
        ),
        Exhibit(
            "flashneuron-4",
            "Latency of BERT queries on the CPU beside training, and the delay over serving only",
            ("percentile", "no offloading s*", "memory s*", "memory, delay %*", "SSD s*", "SSD, delay %*"),
            [
                ["50", 0.736, 0.933, 30.3, 0.746, 4.11],
                ["95", 0.740, 0.944, 30.7, 0.754, 4.35],
                ["99", 0.743, 0.950, 30.9, 0.758, 4.45],
            ],
            PAPER,
            f"{FLASHNEURON}, table 4",
            f"training itself becomes 1.8 % slower (SSD) and 27.5 % slower (memory); {machine}",
        ),
    ]


def _vdnn() -> list[Exhibit]:
    machine = "NVIDIA Titan X of 12 GB, host memory by PCIe"
    return [
        Exhibit(
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
            f"{VDNN}, figure 11",
            f"from section V-A; {machine}",
        ),
        Exhibit(
            "vdnn-14",
            "Throughput lost against a GPU with memory for everything",
            ("way", "on average %*", "at most %*"),
            [
                ["vDNN-all, memory-optimal algorithms", 58, 65],
                ["vDNN-conv, memory-optimal algorithms", 55, 63],
                ["vDNN-dyn", 3, 18],
            ],
            PAPER,
            f"{VDNN}, figure 14",
            f"from section V-C, which says of vDNN-dyn 97 % of the throughput on average and 82 % at worst; {machine}",
        ),
        Exhibit(
            "vdnn-15",
            "Memory of very deep VGG networks, batch 32",
            ("convolutions", "baseline GB*", "vDNN-dyn on the GPU, at most GB*"),
            [["16", 4.9, None], ["416", 67.1, 4.2]],
            PAPER,
            f"{VDNN}, figure 15",
            f"from section V-E, which sees no loss of performance; {machine}",
        ),
    ]


def _memferry() -> list[Exhibit]:
    machine = "one NVIDIA A100 or V100 against DeepSpeed's ZeRO-Offload"
    return [
        Exhibit(
            "memferry-9",
            "Training speed over the baselines",
            ("models", "at least x*", "at most x*"),
            [["BERT-base, RoBERTa", 1.217, 1.687], ["BERT-large, GPT-2", 1.071, 1.321]],
            PAPER,
            f"{MEMFERRY}, figure 9",
            f"section V gives improvements of 21.7 % to 68.7 % and 7.1 % to 32.1 %, the introduction 1.32 x on "
            f"average and up to 1.68 x: 1.07 to 1.68 x in all; {machine}",
        ),
        Exhibit(
            "memferry-12",
            "GPU memory saved against ZeRO-Offload",
            ("way", "on average %*", "at most %*"),
            [["MemFerry", 25.4, 61.7], ["GO-MemFerry", 41.6, 74.4]],
            PAPER,
            f"{MEMFERRY}, figure 12",
            f"section V's averages and the introduction's most; the introduction says 20.1 % on average of "
            f"GO-MemFerry. It trains models 1.52 x as large (figure 11); {machine}",
        ),
        Exhibit(
            "memferry-13",
            "Training speed of TransformerXL over ZeRO-Offload, batch 8",
            ("parameters", "x*"),
            [["1B", 1.37], ["6.7B", 1.26], ["average", 1.32]],
            PAPER,
            f"{MEMFERRY}, figure 13",
            machine,
        ),
    ]
