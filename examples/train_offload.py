"""Train a small network on real digits twice: plainly, and with its activations on an SSD.

    python examples/train_offload.py --store /scratch --steps 5

Both runs start from the same seeds, each in a process of its own, and must give the same losses and the same weights,
bit for bit: this program compares them, and ends with status 1 if they differ. It shows the memory and the time of
each. ``pip install '.[bench]'`` in the clone brings what it needs; the digits and the tables are in shared.py.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor, nn

import fastio
from shared import at_least, digits, folder, screen, show_losses, show_pairs, start_importing

SIDE = 96  # the digits have 8 x 8 pixels; enlarged, their activations take most of the memory
BATCH = 48
WIDTHS = (8, 8, 8, 16, 16, 16)
POOLED = (3, 6)  # after these convolutions
BUDGET = "32MiB"  # memory for saved tensors
HELD_OUT = 197  # images for the test
WARM_UP = 2  # steps whose time is not counted: the first one is profiled


@dataclass(frozen=True)
class Outcome:
    """The results of one run, in bytes and seconds; ``peak`` and ``before`` are the process's resident memory."""

    losses: list[float]
    weights: str
    accuracy: float
    before: int
    peak: int
    step_s: list[float]
    report: str


def network() -> nn.Sequential:
    """A plain convolutional network. Most tensors saved for backward are outputs of a ReLU or a convolution."""
    layers: list[nn.Module] = []
    inputs = 1
    for number, outputs in enumerate(WIDTHS, 1):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs, momentum=None),
            nn.ReLU(),
        ]
        if number in POOLED:
            layers.append(nn.MaxPool2d(2))
        inputs = outputs
    side = SIDE // 2 ** len(POOLED)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * side * side, 10))


def enlarged(images: Tensor) -> Tensor:
    """Digits (N, 8, 8) of 0 to 16 as the network's images: (N, 1, SIDE, SIDE) of 0 to 1."""
    return nn.functional.interpolate(
        images.div(16).unsqueeze(1), size=(SIDE, SIDE), mode="bilinear", align_corners=False
    )


def train(data: str, store: str | None, steps: int) -> Outcome:
    """Train some steps, with activations in ``store`` if there is one."""
    images, labels = fastio.load(data)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    offload = None if store is None else fastio.Offload(model, store=store, budget=BUDGET)
    losses, seconds = [], []
    trained = len(images) - HELD_OUT
    before = resident("VmRSS")
    forget_peak()
    for step in range(steps):
        began = time.perf_counter()
        chosen = torch.arange(step * BATCH, (step + 1) * BATCH) % trained
        with offload or nullcontext():
            loss = nn.functional.cross_entropy(model(enlarged(images[chosen])), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item())
    peak = resident("VmHWM")
    told = "" if offload is None else str(offload.report())
    if offload is not None:
        offload.close()
    model.eval()
    with torch.no_grad():
        right = model(enlarged(images[trained:])).argmax(1) == labels[trained:]
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    return Outcome(losses, digest.hexdigest(), right.float().mean().item(), before, peak, seconds, told)


def resident(field: str) -> int:
    """``VmRSS`` or its peak ``VmHWM``, in bytes."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def forget_peak() -> None:
    """Reset VmHWM to the present resident memory."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def in_a_process(data: str, store: str | None, steps: int) -> Outcome:
    """Run :func:`train` in a new process, so that the runs' memory does not mix."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as process:
        return process.submit(train, data, store, steps).result()


def show(console: Console, plain: Outcome, offloaded: Outcome) -> None:
    """Print both runs side by side."""
    names = "plain", "offloaded"
    show_losses(console, plain.losses, offloaded.losses, names)
    told = {
        "weights at the end (SHA-256)": lambda one: one.weights[:12],
        f"right of {HELD_OUT} digits held out": lambda one: f"{one.accuracy:.1%}",
        "resident memory before": lambda one: mib(one.before),
        "peak while training, above that": lambda one: mib(one.peak - one.before),
        f"median step after the first {WARM_UP}": lambda one: median(one.step_s[WARM_UP:]),
    }
    show_pairs(console, names, {label: (tell(plain), tell(offloaded)) for label, tell in told.items()})
    console.print(offloaded.report)


def mib(nbytes: int) -> str:
    """The bytes as text."""
    return f"{nbytes / 2**20:,.0f} MiB"


def median(seconds: list[float]) -> str:
    """The median as text."""
    return f"{statistics.median(seconds) * 1e3:,.0f} ms" if seconds else "too few steps"


def main() -> int:
    """Train twice and compare. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--store", type=folder, default=".", help="folder on the SSD; nothing stays there (default: this one)"
    )
    parser.add_argument("--steps", type=at_least(1), default=5, help="steps of training (default: %(default)s)")
    arguments = parser.parse_args()
    # Both runs return freed memory to the system at once, so that the count is of used memory. Huge pages make that
    # cheap.
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.mmap_threshold=65536:glibc.malloc.hugetlb=1"
    start_importing()
    console = screen()
    with (
        tempfile.TemporaryDirectory(prefix="fastio-example-", dir=arguments.store) as store,
        Console(stderr=True).status("training plainly") as status,
    ):
        data = os.path.join(store, "digits.pt")
        fastio.save(digits(), data)
        plain = in_a_process(data, None, arguments.steps)
        status.update("training with activations on the SSD")
        offloaded = in_a_process(data, store, arguments.steps)
    show(console, plain, offloaded)
    if plain.losses != offloaded.losses or plain.weights != offloaded.weights:
        console.print("wrong: the losses or the weights differ", style="bold red")
        return 1
    console.print("the same losses and the same weights, bit for bit", style="bold green")
    return 0


if __name__ == "__main__":
    sys.exit(main())
