"""Measures hybrid training on a device: plain training, ZeRO-Offload's plan, MemFerry's, and DeepSpeed, in turn."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastio import devices
from fastio.hybrid import Hybrid
from fastio_bench.harness.rounds import describe
from fastio_bench.hybrid import zero_offload
from fastio_bench.offload.device_ways import SIMULATED
from fastio_bench.report import table
from fastio_bench.report.table import Cell, ResultTable

Step = Callable[[Tensor], Tensor]
"""Trains a step with tokens, and returns its loss."""
Way = Callable[[nn.Module, torch.device], AbstractContextManager[Step]]

PLAIN, ZERO, DEEPSPEED = "plain, all on the GPU", "zero-offload", "DeepSpeed's ZeRO-Offload"
_UNCOUNTED = 5  # steps in which Hybrid measures and plans
_VOCABULARY = 30522
_LEARNING_RATE = 1e-4


class _Trained(NamedTuple):
    """Seconds of a step, the most bytes in the device's tensors in counted steps, and the last loss."""

    step_s: float
    peak: int
    loss: float


class Network(nn.Module):
    """A BERT-like encoder with a classifier of sequences."""

    def __init__(self, hidden: int, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, hidden)
        layer = nn.TransformerEncoderLayer(hidden, hidden // 64, 4 * hidden, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(hidden, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape (batch, sequence) to classes of shape (batch, 2)."""
        classes: Tensor = self.head(self.encoder(self.embedding(tokens))[:, 0])
        return classes


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """The loss of a batch: each sequence's class is the parity of its first token."""
    return nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 2)


@contextmanager
def _plain(model: nn.Module, device: torch.device) -> Iterator[Step]:
    model.to(device)
    yield _step_with(model, torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE))


@contextmanager
def _hybrid(model: nn.Module, device: torch.device, **settings: Any) -> Iterator[Step]:
    if device.type == SIMULATED:
        model.to(device)  # torch cannot change the device of its parameters in place
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    with Hybrid(model, optimizer, device=device, **settings):
        yield _step_with(model, optimizer)


def _step_with(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def ways(device: torch.device) -> dict[str, Way]:
    """The ways that train on this device, by name: DeepSpeed on a GPU, where it is installed."""
    found: dict[str, Way] = {
        PLAIN: _plain,
        ZERO: partial(_hybrid, planner="zero-offload"),
        "memferry": partial(_hybrid, planner="memferry"),
        "memferry, gradients in host memory": partial(_hybrid, planner="memferry", gradient_reserve=0.0),
    }
    if device.type == "cuda" and importlib.util.find_spec("deepspeed") is not None:
        found[DEEPSPEED] = partial(zero_offload.training, loss_of=loss_of, learning_rate=_LEARNING_RATE)
    return found


def measure(
    device: torch.device,
    hidden: int,
    blocks: int,
    batch: int,
    sequence: int,
    steps: int,
    tell: Callable[[str, float], None],
) -> ResultTable:
    """The table of seconds of a step and peak device memory, for every way in turn; memory includes activations."""
    found = {}
    note = f"encoder of {blocks} blocks, width {hidden}, batch {batch}, sequences of {sequence}, AdamW"
    note += f", {steps} steps after {_UNCOUNTED}; memory with activations"
    for way, training in ways(device).items():
        tell(way, 0)
        try:
            found[way] = _trained(training, device, hidden, blocks, batch, sequence, steps)
        except Exception as error:  # plain may lack memory; DeepSpeed compiles its optimizer here
            if way == ZERO:
                raise
            note += f"; {way} failed: {describe(error)}"
        tell(way, 1)
    base = found[ZERO].step_s
    rows: list[list[Cell]] = [
        [way, one.step_s * 1e3, base / one.step_s, one.peak / (1 << 20), one.loss] for way, one in found.items()
    ]
    origin = table.MEASURED
    if device.type == SIMULATED:
        origin = table.SIMULATED
        note += ". The memory is what a GPU would hold; the times are those of this machine's processors, not a GPU's"
    title = f"a step of hybrid training on {devices.identity(device)}"
    columns = ("way", "step ms*", "x zero-offload*", "peak MiB*", "last loss*")
    return ResultTable("hybrid-gpu", title, columns, rows, origin, "MemFerry, figures 9 and 12", note)


def _trained(
    training: Way, device: torch.device, hidden: int, blocks: int, batch: int, sequence: int, steps: int
) -> _Trained:
    accelerator = devices.of(device.type)
    gc.collect()  # the last way's network may be in a reference cycle
    accelerator.module.empty_cache()
    torch.manual_seed(0)
    seconds = []
    with training(Network(hidden, blocks), device) as step:
        torch.manual_seed(1)
        for number in range(_UNCOUNTED + steps):
            tokens = torch.randint(0, _VOCABULARY, (batch, sequence), device="cpu").to(device)
            accelerator.module.synchronize(device)
            if number == _UNCOUNTED:
                accelerator.reset_peak_memory(device)
            began = time.perf_counter()
            loss = step(tokens)
            accelerator.module.synchronize(device)
            seconds.append(time.perf_counter() - began)
        return _Trained(median(seconds[_UNCOUNTED:]), accelerator.peak_memory(device), loss.item())
