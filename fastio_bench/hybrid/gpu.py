"""Measures hybrid training on a GPU: plain training, ZeRO-Offload's plan and MemFerry's, in rounds."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch import nn

from fastio.hybrid import Hybrid
from fastio_bench.report.table import ResultTable

PLAIN = "plain, all on the GPU"
WAYS: dict[str, dict[str, Any] | None] = {
    PLAIN: None,
    "zero-offload": {"planner": "zero-offload"},
    "memferry": {"planner": "memferry"},
    "memferry, gradients in host memory": {"planner": "memferry", "gradient_reserve": 0.0},
}
_PROFILED = 5  # uncounted steps
_VOCABULARY = 30522


class Network(nn.Module):
    """A BERT-like encoder with a classifier of sequences."""

    def __init__(self, hidden: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, hidden)
        layer = nn.TransformerEncoderLayer(hidden, hidden // 64, 4 * hidden, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(hidden, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens of shape (batch, sequence) to classes of shape (batch, 2)."""
        classes: torch.Tensor = self.head(self.encoder(self.embedding(tokens))[:, 0])
        return classes


def measure(
    hidden: int, blocks: int, batch: int, sequence: int, steps: int, tell: Callable[[str, float], None]
) -> ResultTable:
    """The table of seconds of a step and peak GPU memory, for every way in turn."""
    rows: list[list[str | float | None]] = []
    for way, settings in WAYS.items():
        tell(way, 0)
        gc.collect()  # the last way's network may be in a reference cycle
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        seconds = list(_steps(settings, hidden, blocks, batch, sequence, steps))
        rows.append([way, median(seconds) * 1e3, None, torch.cuda.max_memory_allocated() / (1 << 20)])
        tell(way, 1)
    base = rows[1][1]
    for row in rows:
        row[2] = base / row[1] if isinstance(base, float) and isinstance(row[1], float) else None
    title = f"a step of hybrid training on {torch.cuda.get_device_name()}"
    note = f"encoder of {blocks} blocks, width {hidden}, batch {batch}, sequences of {sequence}, AdamW, {steps} steps"
    columns = ("way", "step ms*", "x zero-offload*", "peak MiB*")
    return ResultTable("hybrid-gpu", title, columns, rows, source="MemFerry, figure 9", note=note)


def _steps(
    settings: dict[str, Any] | None, hidden: int, blocks: int, batch: int, sequence: int, steps: int
) -> Iterator[float]:
    torch.manual_seed(0)
    model = Network(hidden, blocks)
    if settings is None:
        model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    hybrid = None if settings is None else Hybrid(model, optimizer, device="cuda", **settings)
    for number in range(_PROFILED + steps):
        tokens = torch.randint(0, _VOCABULARY, (batch, sequence), device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 2).backward()
        optimizer.step()
        torch.cuda.synchronize()
        if number >= _PROFILED:
            yield time.perf_counter() - began
    if hybrid is not None:
        hybrid.close()
