"""Train a small network on real digits twice: plainly, and with parameters, gradients and optimizer in host memory.

    python examples/train_hybrid.py --store /scratch --steps 12

Both runs start from the same seeds and must give the same losses, weights and optimizer state, bit for bit: this
program compares them, and ends with status 1 if they differ. Without a GPU, a second buffer of host memory stands in
for its memory, and the plan is for a simulated GPU. The optimizer's state lies in a folder on the SSD.
``pip install '.[bench]'`` in the clone brings what it needs; the digits and the tables are in shared.py beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import fastio
from shared import at_least, digits, folder, screen, show_losses, show_pairs

BATCH = 64
TOKENS = 16
WIDTH = 64
HELD_OUT = 197  # images for the test
BUDGET = "192KiB"  # GPU memory for parameters: about half of them
RESERVE = 0.5  # the share of gradients that may stay there


@dataclass(frozen=True)
class Outcome:
    """The results of one run. ``state``: SHA-256 of all weights, and of the optimizer's state."""

    losses: list[float]
    state: str
    accuracy: float
    report: str


class Reader(nn.Module):
    """Reads a digit of 4 x 4 squares, each of one of 17 grey values, as 16 tokens: an embedding and an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.grey = nn.Embedding(17, WIDTH)
        self.place = nn.Parameter(torch.randn(TOKENS, WIDTH) / 8)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (N, 16) from 0 to 16 to scores (N, 10)."""
        scores: Tensor = self.head(self.encoder(self.grey(tokens) + self.place).mean(1))
        return scores


def words() -> tuple[Tensor, Tensor]:
    """The digits as 16 squares of 2 x 2 pixels: grey values (N, 16) from 0 to 16, and labels (N,)."""
    images, labels = digits()
    return images.view(-1, 4, 2, 4, 2).mean((2, 4)).round().long().flatten(1), labels


def train(store: str | None, steps: int) -> Outcome:
    """Train some steps; hybrid, with the optimizer's state in the folder ``store``, if there is one."""
    tokens, labels = words()
    torch.set_num_threads(1)  # more threads do not help with such small tensors
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    hybrid = None
    if store is not None:
        hybrid = fastio.Hybrid(
            model, optimizer, gpu_budget=BUDGET, gradient_reserve=RESERVE, optimizer_store=store, device="cpu"
        )
    losses = []
    trained = len(tokens) - HELD_OUT
    for step in range(steps):
        chosen = torch.arange(step * BATCH, (step + 1) * BATCH) % trained
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[chosen]), labels[chosen])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if hybrid is None:
            optimizer.step()
        else:
            hybrid.step()
        losses.append(loss.item())
    digest = hashlib.sha256()
    for value in (*model.state_dict().values(), *tensors(optimizer.state_dict()["state"])):
        digest.update(value.numpy().tobytes())
    model.eval()
    with torch.no_grad():
        right = model(tokens[trained:]).argmax(1) == labels[trained:]
    told = "" if hybrid is None else str(hybrid.report())
    if hybrid is not None:
        hybrid.close()
    return Outcome(losses, digest.hexdigest(), right.float().mean().item(), told)


def tensors(state: dict[int, dict[str, Any]]) -> list[Tensor]:
    """An optimizer's state in a fixed order."""
    return [state[number][name] for number in sorted(state) for name in sorted(state[number])]


def show(console: Console, plain: Outcome, hybrid: Outcome) -> None:
    """Print both runs side by side."""
    names = "plain", "hybrid"
    show_losses(console, plain.losses, hybrid.losses, names)
    rows = {
        "weights and optimizer state (SHA-256)": (plain.state[:12], hybrid.state[:12]),
        f"right of {HELD_OUT} digits held out": (f"{plain.accuracy:.1%}", f"{hybrid.accuracy:.1%}"),
    }
    show_pairs(console, names, rows)
    console.print(hybrid.report)


def main() -> int:
    """Train twice and compare. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--store", type=folder, default=".", help="folder on the SSD; nothing stays there (default: this one)"
    )
    parser.add_argument("--steps", type=at_least(1), default=12, help="steps of training (default: %(default)s)")
    arguments = parser.parse_args()
    console = screen()
    with (
        tempfile.TemporaryDirectory(prefix="fastio-example-", dir=arguments.store) as store,
        Console(stderr=True).status("training plainly") as status,
    ):
        plain = train(None, arguments.steps)
        status.update("training with parameters in host memory, and the optimizer's state on the SSD")
        hybrid = train(store, arguments.steps)
    show(console, plain, hybrid)
    if plain.losses != hybrid.losses or plain.state != hybrid.state:
        console.print("wrong: the losses, the weights or the optimizer's state differ", style="bold red")
        return 1
    console.print("the same losses, weights and optimizer state, bit for bit", style="bold green")
    return 0


if __name__ == "__main__":
    sys.exit(main())
