"""Measures offload on a GPU: step time and peak device memory beside other ways, and the codecs' speed.

    python -m fastio_bench.offload.gpu_offload --dir /nvme/scratch --out results

Seconds are wall time between two points where the GPU is idle. Bytes are those of torch's allocator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from torch import nn

import fastio
from fastio import devices
from fastio.offload import decode, encode
from fastio.offload.codecs.encoding import Codec
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.options import common
from fastio_bench.harness.rounds import Contestant, Measured, SystemClock, Task, interleave
from fastio_bench.harness.stats import summarise
from fastio_bench.offload.device_ways import PLAIN, Around, opened
from fastio_bench.report.summary_tables import spread
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.workloads.objects import MIB

_WARM_UP = 3  # steps: one is profiled, one planned, one settled
_CODECS: tuple[Codec, ...] = ("csr", "fp16", "bf16", "csr+fp16")
_ZEROS = 0.6  # the share of zeros after a ReLU, as in FlashNeuron


def own_ways(budget: int, host_budget: str) -> dict[str, dict[str, Any]]:
    """The settings of fastio's ways by name. ``budget`` in bytes."""
    return {
        "disk": {"policy": "all", "codec": "none"},
        "host then disk": {"policy": "all", "codec": "none", "host_budget": host_budget},
        "flashneuron": {"budget": budget, "host_budget": host_budget},
    }


@click.command()
@click.option("--layers", default=24, show_default=True, help="Of a transformer encoder.")
@click.option("--width", default=1024, show_default=True, help="Of the model; a multiple of 64.")
@click.option("--tokens", default=512, show_default=True, help="In a sequence.")
@click.option("--batch", default=4, show_default=True, help="Sequences.")
@click.option("--host-budget", default="4GiB", show_default=True, help="Pinned memory for fastio.")
@click.option("--rounds", default=5, show_default=True, help="Each way trains one step a round.")
@common
def gpu_offload(
    command: CommandRun, layers: int, width: int, tokens: int, batch: int, host_budget: str, rounds: int
) -> None:
    """Train on a GPU with what backward needs moved out of its memory, and without."""
    if not torch.cuda.is_available():
        raise click.ClickException("torch finds no CUDA device: there is nothing to measure")
    command.report.settings |= {"layers": layers, "width": width, "tokens": tokens, "batch": batch, "rounds": rounds}
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    x = torch.randn(batch, tokens, width, device="cuda")

    def step(around: Around) -> Measured:
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, clock = torch.cuda.memory_allocated(), SystemClock()
        cpu, wall = clock.cpu(), clock.wall()
        with around():
            loss = model(x).square().mean()
        loss.backward()
        torch.cuda.synchronize()
        wall, cpu = clock.wall() - wall, clock.cpu() - cpu
        return Measured(wall, cpu, torch.cuda.max_memory_allocated() - before)

    def work(folder: Path) -> None:
        saved = step(nullcontext).extra_bytes or 1
        task = Task("step", f"{layers} layers, batch {batch}", saved)
        with opened(torch.device("cuda", 0), folder, own_ways(saved // 2, host_budget)) as found:
            contestants = [Contestant(name, partial(step, around)) for name, around in found.items()]
            for _ in interleave(task, contestants, _WARM_UP):
                pass
            for _ in command.report.take(interleave(task, contestants, rounds)):
                pass
        command.report.findings["codecs, GB/s"] = codecs(256 << 20, rounds, torch.device("cuda"))

    command.run(work, lambda: [_steps(command), _speeds(command)], draw=lambda _: ())


def codecs(nbytes: int, rounds: int, device: torch.device) -> dict[str, dict[str, float]]:
    """By codec: the bytes of the plain float32 tensor over seconds, in 10^9 bytes/s, and the ratio, on a device."""
    tensor = torch.rand(nbytes // 4, device=device)
    tensor *= torch.rand_like(tensor) >= _ZEROS
    found: dict[str, dict[str, float]] = {}
    for codec in _CODECS:
        try:
            encoded = encode(tensor, codec)
            decode(encoded)  # the first use compiles the kernels
            found[codec] = {
                "encode": nbytes / _seconds(partial(encode, tensor, codec), rounds, device) / 1e9,
                "decode": nbytes / _seconds(partial(decode, encoded), rounds, device) / 1e9,
                "ratio": encoded.ratio,
            }
        except fastio.ToolUnavailableError as error:
            click.echo(f"{codec}: {error}", err=True)
    return found


def _seconds(call: Callable[[], object], rounds: int, device: torch.device) -> float:
    synchronize = partial(devices.of(device).synchronize, device)
    taken = []
    for _ in range(rounds):
        synchronize()
        began = time.perf_counter()
        call()
        synchronize()
        taken.append(time.perf_counter() - began)
    return median(taken)


def _steps(command: CommandRun) -> ResultTable:
    rows: list[list[Cell]] = [
        [own.tool, own.seconds * 1e3, own.ratio, spread(own), own.extra_bytes and own.extra_bytes / MIB]
        for own in summarise(command.report.samples, PLAIN)
    ]
    columns = ("way", "ms*", "speed x plain*", "spread", "peak MiB*")
    return ResultTable("gpu-steps", "A training step", columns, rows)


def _speeds(command: CommandRun) -> ResultTable:
    found = command.report.findings.get("codecs, GB/s", {})
    rows = [[codec, row["encode"], row["decode"], row["ratio"]] for codec, row in found.items()]
    columns = ("codec", "in GB/s*", "out GB/s*", "ratio*")
    return ResultTable("gpu-codecs", "Codecs on 256 MiB, 60 % zeros", columns, rows)


if __name__ == "__main__":
    gpu_offload(prog_name="gpu-offload")
