"""What the Fastensor paper has on feature maps moved in training (TACO 2023, tables 1, 8, 10-12), as printed there."""

from __future__ import annotations

from collections.abc import Sequence

from fastio_bench.papers.fastensor import MACHINE, NAME
from fastio_bench.report.table import PAPER, Cell, ResultTable

PLAIN = "No_offload"
_SPLIT: tuple[tuple[Cell, ...], ...] = (
    (64, 32, 20421.7, 511.292),
    (64, 1000, 462886, 11959.3),
    (960, 32, 21835.1, 423.725),
)
_TOY: tuple[tuple[Cell, ...], ...] = (
    ("Fastensor_w", 45.8821),
    ("Fastensor_r", 41.1856),
    ("Fastensor_wr", 39.8834),
    ("Kvikio", 44.9453),
    ("Torch", 64.0384),
    ("Numpy", 40.4264),
    ("DALI", 3601.8675),
)
_OUT = ("OOM", "OOM", "OOM")
_BERT: tuple[tuple[Cell, ...], ...] = (
    ("Fastensor_r", 4323.7250, 0.9625, 3188, 2457.1520, 0.9055, 6860, 2489.3058, 0.1079, 79282),
    ("Fastensor_w", 3801.3562, 0.9631, 3166, 2431.1330, 0.9057, 6858, 2435.462, 0.0937, 79284),
    ("Fastensor_wr", 3683.575, 0.9632, 3164, 2425.9839, 0.9112, 6858, 2343.1035, 0.1024, 79282),
    ("Kvikio", 6132.7158, 0.9646, 3164, 2551.4649, 0.9057, 6858, 2485.2156, 0.1079, 79282),
    ("Torch", 4724.0407, 0.9605, 3164, 5863.1019, 0.9085, 6858, 6143.4802, 0.0940, 79282),
    ("Numpy", 3866.9523, 0.9618, 3164, 3456.1342, 0.9118, 6858, 4364.04631, 0.1065, 79282),
    (PLAIN, 111.2615, 0.9607, 4273, 87.9, 0.9089, 42593, *_OUT),
)
_VIT: tuple[tuple[Cell, ...], ...] = (
    ("Fastensor_r", 14198.6679, 0.7584, 7658, 11557.4366, 0.2483, 9134, 10498.8028, 0.0033, 49574),
    ("Fastensor_w", 10495.3413, 0.7613, 7548, 8479.4639, 0.2477, 9146, 7592.3619, 0.0033, 49574),
    ("Fastensor_wr", 10323.6271, 0.7749, 7548, 8370.7920, 0.2509, 9146, 7524.2893, 0.0032, 49574),
    ("Kvikio", 12228.4776, 0.7620, 7526, 8966.7357, 0.2423, 9077, 7633.9453, 0.0032, 44754),
    ("Torch", 18166.8237, 0.7598, 7494, 20933.1586, 0.2453, 8704, 22258.7225, 0.0033, 39096),
    ("Numpy", 22291.2817, 0.7593, 7488, 28640.8777, 0.2421, 8506, 23784.3459, 0.0033, 39094),
    (PLAIN, 481.2929, 0.7632, 20330, 511.2915, 0.2496, 57496, *_OUT),
)
_DEEP: tuple[tuple[Cell, ...], ...] = (
    ("Fastensor_r", 1000, 247645),
    ("Fastensor_w", 1000, 206720),
    ("Fastensor_wr", 1000, 197786),
    ("Kvikio", 1000, 234776),
    ("Torch", 1000, 474846),
    ("Numpy", 1000, 508328),
    (PLAIN, 32, 511.292),
)
BERT_BATCHES, VIT_BATCHES = ("64", "2,048", "40,960"), ("16", "64", "960")


def exhibits() -> list[ResultTable]:
    """The paper's tables."""
    return [
        _table(
            1,
            "An epoch of ViT-H/14, feature maps on the SSD by torch.save and torch.load",
            ("batch*", "layers*", "transfers s*", "reading data and computing s*"),
            _SPLIT,
        ),
        _table(8, "Training a toy model, feature maps on the SSD", ("tool", "s an epoch*"), _TOY),
        _table(
            10,
            "Training BERT, feature maps on the SSD",
            _columns(BERT_BATCHES),
            _BERT,
            "seconds an epoch, MB of GPU memory. The 60.36 % by which its text has Fastensor_wr ahead of torch at "
            "batch 40,960 are Fastensor_w's: by these figures they are 61.86 %",
        ),
        _table(11, "Training ViT-H/14, feature maps on the SSD", _columns(VIT_BATCHES), _VIT, "as table 10"),
        _table(
            12,
            "The deepest ViT-H/14 at batch 64, feature maps on the SSD",
            ("tool", "layers*", "s an epoch*"),
            _DEEP,
            "of torch's 474,846 s transfers are 462,886 (table 1)",
        ),
    ]


def _columns(batches: Sequence[str]) -> list[str]:
    return ["method", *(f"{batch}: {what}*" for batch in batches for what in ("s", "accuracy", "MB"))]


def _table(
    number: int, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = ""
) -> ResultTable:
    said = f"{MACHINE}; {note}" if note else MACHINE
    return ResultTable(f"fastensor-{number}", title, columns, rows, PAPER, f"{NAME}, table {number}", said)
