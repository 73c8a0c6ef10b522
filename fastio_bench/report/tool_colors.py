"""One colour for each tool, on every page, plot and picture: the numbers of the series in page.css. Pure."""

from __future__ import annotations

# Light and dark, as `--series-…` in page.css (a test compares them). Okabe and Ito's hues first.
LIGHT = (
    *("#0a6ebd", "#d3570a", "#12876a", "#b0589c", "#a97e00", "#4aa3d8", "#6a55c2", "#8a6a52", "#6b747c"),
    *("#c2395b", "#5f8f1e", "#2b4c8c"),
)
DARK = (
    *("#58abed", "#f28a4b", "#4cc3a1", "#dd93cc", "#d9b23c", "#9ad3f5", "#a898f0", "#c3a089", "#a3acb5"),
    *("#f0809b", "#a3cf5f", "#8aa8e8"),
)
_NUMBERS = {
    "fastio": 0,
    "torch": 1,
    "safetensors": 2,
    "numpy": 3,
    "DCP": 4,
    "uring": 5,
    "posix": 6,
    "runai-model-streamer": 7,
    "disk limit": 8,
    "memory limit": 8,
    "fastsafetensors": 9,
    "torchsnapshot": 10,
    "DALI": 11,
    # Tools of fastio that no peer is compared with on one chart.
    "dali": 11,
    "pinned": 9,
    "gds": 10,
    "memory": 4,
    "DeepNVMe": 5,
    "TensorNVMe": 6,
}
_OTHERS = (7, 8)  # of tools that are not in the table


def number(tool: str) -> int:
    """The number of the tool's series. "torch, mmap" is torch in another mode, and has its colour."""
    name = tool.partition(",")[0].strip()
    if name in _NUMBERS:
        return _NUMBERS[name]
    return _OTHERS[sum(name.encode()) % len(_OTHERS)]


def in_files(tool: str, mode: str = "light") -> str:
    """The tool's colour as text, in a picture for a ``light`` or ``dark`` page."""
    return (LIGHT if mode == "light" else DARK)[number(tool)]
