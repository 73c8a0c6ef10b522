"""Figures of the Fastensor paper (TACO 2023) as printed there: tables 2-6, 9, 13 and 14."""

from __future__ import annotations

from collections.abc import Sequence

from fastio_bench.report.table import PAPER, Cell, ResultTable

NAME = "Fastensor"
MACHINE = "NVIDIA A100, Xeon Silver 4210R, Samsung MZ-V8V1T0BW, between SSD and GPU memory"
_SIZES = ("1,568", "784", "392", "196", "98", "49", "24.5", "12.25", "6.125", "3.0625")
_READ = ("size MB*", "kvikio*", "DALI, 1 pipeline*", "DALI, best*", "torch*", "numpy*")

_CACHED = (
    (1940.21, 2181.00, 2417.51, 924.84, 1184.21),
    (1888.70, 2107.98, 2490.24, 966.22, 1429.51),
    (1930.18, 2114.40, 2529.81, 1361.82, 1715.84),
    (1861.60, 2281.83, 2521.47, 1410.38, 1779.88),
    (1901.80, 1905.50, 2532.49, 1395.02, 1780.20),
    (1772.15, 1586.05, 2558.59, 1409.67, 1799.49),
    (1788.32, 823.85, 2560.14, 2360.31, 2755.91),
    (1576.64, 453.76, 2559.37, 2551.55, 3479.13),
    (1447.31, 447.60, 2555.53, 2718.60, 3033.68),
    (1126.75, 268.40, 2541.88, 2245.23, 2542.49),
)
_COLD = (
    (2166.34, 2449.08, 2498.01, 836.13, 1057.03),
    (2210.32, 2418.26, 2498.41, 890.91, 1089.31),
    (2218.45, 2314.05, 2501.60, 847.57, 1198.78),
    (1984.41, 2207.71, 2262.50, 906.15, 1196.58),
    (2049.35, 1952.19, 2503.83, 956.10, 1179.30),
    (1683.85, 1615.03, 2496.18, 844.83, 1323.43),
    (1647.61, 1240.51, 2484.54, 1079.30, 1456.60),
    (1510.48, 396.95, 2196.13, 964.72, 1676.47),
    (1161.58, 367.75, 2196.13, 964.72, 1411.62),
    (896.78, 232.54, 2119.38, 735.65, 1294.38),
)
_WRITE = (
    (1460.00, 432.56, 748.56),
    (1435.77, 431.53, 739.69),
    (1213.24, 429.40, 725.52),
    (1486.09, 430.58, 701.75),
    (1214.24, 432.41, 688.20),
    (1408.05, 435.17, 669.40),
    (1215.44, 651.60, 995.94),
    (1258.76, 716.37, 1012.40),
    (1216.24, 775.32, 1113.64),
    (838.35, 791.96, 1182.43),
)
_UTILISED = (
    "tool",
    "utilisation, read*",
    "MB/s, cached*",
    "IOef, cached*",
    "MB/s*",
    "IOef*",
    "utilisation, write*",
    "MB/s, write*",
    "IOef, write*",
)
_CPU: tuple[tuple[Cell, ...], ...] = (
    ("torch", 0.991, 2551.552, 2574.724, 1042.553, 1052.021, 1.032, 716.374, 694.161),
    ("numpy", 0.999, 3479.125, 3482.608, 1676.475, 1678.153, 1.074, 1012.397, 942.641),
    ("kvikio", 0.350, 1576.637, 4504.678, 1510.481, 4315.660, 0.829, 1346.154, 1623.829),
    ("DALI, best", 0.629, 2559.372, 4068.895, 2229.299, 3544.196, None, None, None),
    ("DALI, 1 pipeline", 0.892, 2544.853, 2852.974, 744.228, 834.337, None, None, None),
)
_GPU: tuple[tuple[Cell, ...], ...] = (
    ("torch", 0.140, 2551.55, 18225.4, 1042.55, 7446.81, 0.050, 716.374, 14327.5),
    ("numpy", 0.280, 3479.13, 12425.4, 1676.48, 5987.41, 0.070, 1012.40, 14462.8),
    ("kvikio", 0.010, 1576.64, 157663, 1510.48, 151048, 0.010, 1346.15, 33653.8),
    ("DALI, best", 0.020, 2559.37, 127968, 2229.30, 111464, None, None, None),
    ("DALI, 1 pipeline", 0.020, 2544.85, 127242, 744.228, 37211.4, None, None, None),
)
_MODELS: tuple[tuple[Cell, ...], ...] = (
    ("AlexNet", 233.1, 0.1571, 0.0142, 0.6636, 0.6168),
    ("VGG19", 548.1, 0.3493, 0.2199, 1.5027, 1.2855),
    ("ResNet152", 230.5, 0.1884, 0.1630, 0.4888, 0.5436),
    ("WideResNet50", 263.1, 0.1494, 0.1584, 0.5794, 0.5751),
    ("ViT-B/32", 336.6, 0.2154, 0.1989, 0.6819, 0.7128),
    ("Swin-B", 335.5, 0.2306, 0.2040, 0.6402, 0.6876),
    ("ViT-H/14", 2411, 1.148, 1.287, 6.9129, 5.6460),
    ("MobileNetV3", 9.830, 0.0258, 0.0246, 0.03344, 0.0345),
    ("Toy", 0.5600, 0.0017, 0.0089, 0.0019, 0.0017),
    ("BERT", 390.2, 0.2174, 0.1990, 0.7987, 0.7028),
)
_SPREAD = ("size MB*", "pt*", "npy*", "cpy*", "first", "best")
_BERT: tuple[tuple[Cell, ...], ...] = (
    ("5.34e-5", 45, 1139, 0, "npy", "npy"),
    ("0.0030", 239, 945, 0, "npy", "npy"),
    ("0.0040", 71, 113, 0, "npy", "npy"),
    ("0.0074", 890, 294, 0, "npy", "pt"),
    ("0.0147", 148, 1036, 0, "npy", "npy"),
    ("0.0293", 379, 805, 0, "npy", "npy"),
    ("0.1875", 849, 335, 0, "pt", "pt"),
    ("0.6592", 0, 1184, 0, "npy", "npy"),
    ("1.4063", 7, 1176, 1, "npy", "npy"),
    ("2.2500", 25, 910, 249, "pt", "npy"),
    ("2.6368", 0, 68, 1116, "cpy", "cpy"),
    ("5.6250", 0, 21, 1163, "cpy", "cpy"),
    ("9.0000", 0, 10, 1174, "cpy", "cpy"),
    ("22.5000", 0, 10, 1174, "cpy", "cpy"),
)
_VIT: tuple[tuple[Cell, ...], ...] = (
    ("5.34e-5", 37, 108, 0, "npy", "npy"),
    ("0.0049", 48, 97, 0, "pt", "npy"),
    ("0.0050", 46, 99, 0, "npy", "npy"),
    ("0.0628", 53, 92, 0, "pt", "npy"),
    ("0.4981", 6, 139, 0, "npy", "npy"),
    ("2.8711", 1, 7, 139, "cpy", "cpy"),
    ("6.2500", 0, 19, 126, "cpy", "cpy"),
    ("6.2745", 0, 3, 142, "npy", "npy"),
    ("18.7500", 0, 10, 135, "cpy", "cpy"),
    ("20.1566", 0, 2, 143, "cpy", "cpy"),
    ("25.0000", 0, 2, 143, "cpy", "cpy"),
    ("25.0977", 0, 6, 139, "cpy", "cpy"),
    ("36.7500", 0, 0, 145, "cpy", "cpy"),
    ("80.3125", 0, 4, 141, "cpy", "cpy"),
    ("258.0040", 0, 4, 141, "cpy", "cpy"),
    ("321.2500", 0, 2, 143, "cpy", "cpy"),
)


def exhibits() -> list[ResultTable]:
    """The paper's tables."""
    return [
        _table(2, "Reading, with the page cache, MB/s", _READ, _sized(_CACHED)),
        _table(
            3,
            "Reading, without the page cache, MB/s",
            _READ,
            _sized(_COLD),
            "torch and DALI, best, have the same figures at 12.25 and 6.125 MB, and others at 12.25 MB in table 5",
        ),
        _table(4, "Writing, MB/s", ("size MB*", "kvikio*", "torch*", "numpy*"), _sized(_WRITE)),
        _table(5, "CPU utilisation and IOef at batch 4 (12.25 MB)", _UTILISED, _CPU, "IOef: MB/s over utilisation"),
        _table(
            6,
            "GPU utilisation and IOef at batch 4 (12.25 MB)",
            _UTILISED,
            _GPU,
            "kvikio's 33,653.8 is not its 1,346.15 MB/s over 0.010",
        ),
        _table(
            9,
            "Seconds to save a model",
            ("model", "size MB*", "Fastensor, writing*", "kvikio*", "torch*", "numpy*"),
            _MODELS,
            "kvikio's 0.0142 s for AlexNet would be 16 GB/s; its other figures are about 1.8 GB/s. By their sizes, its "
            "MobileNetV3 is the small one, and its BERT has the Chinese vocabulary",
        ),
        _table(
            13,
            "How often each tool was the best, BERT, 1,184 dictionaries",
            _SPREAD,
            _BERT,
            "how often the best tool was used: first 79.59 %, best 88.52 %, torch alone 16.01 %, which "
            "follow from 1,113 at 0.0040 MB, where 113 is printed",
        ),
        _table(
            14,
            "How often each tool was the best, ViT-H/14, 145 dictionaries",
            _SPREAD,
            _VIT,
            "how often the best tool was used: first 85.43 %, best 89.22 %, torch alone 8.23 %, which "
            "follow from 137 at 2.8711 MB, where 139 is printed, and from cpy at 6.2745 MB, where npy is",
        ),
    ]


def _sized(figures: Sequence[Sequence[float]]) -> list[list[Cell]]:
    return [[size, *row] for size, row in zip(_SIZES, figures, strict=True)]


def _table(
    number: int, title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = ""
) -> ResultTable:
    said = f"{MACHINE}; {note}" if note else MACHINE
    return ResultTable(f"fastensor-{number}", title, columns, rows, PAPER, f"{NAME}, table {number}", said)
