"""Train a small network on real digits twice: undisturbed, and killed at random moments and resumed from checkpoints.

    python examples/resume.py --folder /scratch --kills 2

The second training saves a checkpoint after every step, asynchronously, and is killed by SIGKILL: no handler runs,
nothing is flushed. Then a new process restores the newest complete step and continues. Both trainings must give the
same losses and the same weights, bit for bit: this program compares them, and ends with status 1 if they differ.
``pip install '.[bench]'`` in the clone brings what it needs; the digits and the tables are in shared.py beside it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import fastio
from fastio.checkpoint import Checkpointer, RandomState
from shared import at_least, digits, folder, screen, show_losses, start_importing

BATCH = 32
SHOWN = 4  # losses around each interruption


class Batches:
    """Endless shuffled batches of the digits, in a new order for each epoch. It has a state to save and restore."""

    def __init__(self, data: str) -> None:
        images, self._labels = fastio.load(data)
        self._images = images.div(16).unsqueeze(1)
        self._order = torch.empty(0, dtype=torch.int64)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Images (BATCH, 1, 8, 8) from 0 to 1, and labels (BATCH,)."""
        if len(self._order) < BATCH:
            self._order = torch.randperm(len(self._labels))
        chosen, self._order = self._order[:BATCH], self._order[BATCH:].clone()
        return self._images[chosen], self._labels[chosen]

    def state_dict(self) -> dict[str, Any]:
        """The rest of this epoch's order."""
        return {"order": self._order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._order = state["order"]


def beginning(data: str) -> dict[str, Any]:
    """The initial training state."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "batches": Batches(data),
        "random": RandomState(),
        "losses": [],
    }


def train(data: str, checkpoints: str, steps: int, every: int) -> None:
    """Continue from the newest of ``checkpoints``, if there is one, up to ``steps``; save every ``every`` steps."""
    torch.set_num_threads(1)
    state = beginning(data)
    with Checkpointer(checkpoints, keep=2) as checkpointer:
        restored = checkpointer.restore(into=state)
        for step in range(restored.step + 1 if restored is not None else 1, steps + 1):
            images, labels = state["batches"].draw()
            loss = nn.functional.cross_entropy(state["model"](images), labels)
            state["optimizer"].zero_grad()
            loss.backward()
            state["optimizer"].step()
            state["scheduler"].step()
            state["losses"].append(loss.item())
            if step % every == 0 or step == steps:
                checkpointer.save(step, state, {"loss": loss.item()})


def run(data: str, checkpoints: str, steps: int, every: int, kill_at: int | None) -> int:
    """Train in a new process, and kill it once step ``kill_at`` is saved. Returns the newest saved step."""
    os.makedirs(checkpoints, exist_ok=True)
    process = multiprocessing.get_context("forkserver").Process(target=train, args=(data, checkpoints, steps, every))
    process.start()
    with Checkpointer(checkpoints, read_only=True) as checkpointer:
        if kill_at is not None:
            while (checkpointer.latest() or 0) < kill_at and process.is_alive():
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.02))  # anywhere in a step, or in a save
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        if process.exitcode != (0 if kill_at is None else -signal.SIGKILL):
            raise RuntimeError(f"training ended with status {process.exitcode}")
        return checkpointer.latest() or 0


def outcome(checkpoints: str) -> dict[str, Any]:
    """The state in a training's last checkpoint."""
    with Checkpointer(checkpoints, read_only=True) as checkpointer:
        restored = checkpointer.restore()
    if restored is None:
        raise RuntimeError(f"{checkpoints}: there is no checkpoint")
    state: dict[str, Any] = restored.state
    return state


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether the weights are bitwise equal."""
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def show(console: Console, plain: list[float], resumed: list[float], resumed_at: list[int]) -> None:
    """Print the losses around each interruption, and the last ones."""
    around = {at + offset for at in (*resumed_at, len(plain)) for offset in range(1 - SHOWN // 2, SHOWN // 2 + 1)}
    killed = dict.fromkeys(resumed_at, "killed here")
    show_losses(console, plain, resumed, ("undisturbed", "killed and resumed"), around, killed)


def main() -> int:
    """Train twice and compare. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--folder", type=folder, default=".", help="where checkpoints go; nothing stays there (default: this one)"
    )
    parser.add_argument("--steps", type=int, default=60, help="steps of training (default: %(default)s)")
    parser.add_argument("--kills", type=at_least(1), default=1, help="how often to kill it (default: %(default)s)")
    arguments = parser.parse_args()
    steps, kills = arguments.steps, arguments.kills
    if steps < 20 * kills:
        parser.error("--steps: at least 20 for each time that it is killed")
    start_importing()
    console = screen()
    with (
        tempfile.TemporaryDirectory(prefix="fastio-example-", dir=arguments.folder) as place,
        Console(stderr=True).status("training undisturbed") as status,
    ):
        data, undisturbed, killed = (os.path.join(place, name) for name in ("digits.pt", "undisturbed", "killed"))
        fastio.save(digits(), data)
        run(data, undisturbed, steps, steps, None)
        resumed_at = []
        for number in range(kills):
            status.update(f"training, and killing it ({number + 1} of {kills})")
            first = steps * number // (kills + 1)
            resumed_at.append(run(data, killed, steps, 1, random.randint(first + 1, first + steps // (kills + 1))))
        status.update("going on to the end")
        run(data, killed, steps, 1, None)
        plain, resumed = outcome(undisturbed), outcome(killed)
    show(console, plain["losses"], resumed["losses"], resumed_at)
    if plain["losses"] != resumed["losses"] or not same_weights(plain["model"], resumed["model"]):
        console.print("wrong: the losses or the weights differ", style="bold red")
        return 1
    after = " and ".join(str(step) for step in resumed_at)
    console.print(
        f"killed and resumed after step {after}: the same {steps} losses and weights, bit for bit", style="bold green"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
