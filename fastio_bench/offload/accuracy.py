"""Measures a codec's effect on accuracy: training on scikit-learn's digits, plain and offloaded, over several seeds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fastio_bench.offload import training_ways

SEEDS = 5
EPOCHS = 12
_BATCH, _LEARNING_RATE = 64, 0.002
_TEST_SHARE = 4  # a quarter


@dataclass(frozen=True)
class Digits:
    """1,797 images of 1 x 8 x 8, values 0 to 1, and their classes, split by seed."""

    train: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Accuracy:
    """The accuracy on the test images: one score a seed, their mean and standard deviation.

    ``losses`` are the training losses by seed and epoch, means over the epoch's batches.
    """

    way: str
    scores: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...] = ()

    @property
    def mean(self) -> float:
        return mean(self.scores)

    @property
    def spread(self) -> float:
        return stdev(self.scores) if len(self.scores) > 1 else 0.0


def load(seed: int) -> Digits:
    """The digits, shuffled and split by the seed. Raises ModuleNotFoundError without scikit-learn."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    x = torch.from_numpy(images).float().view(-1, 1, 8, 8)[order] / 16
    y = torch.from_numpy(classes).long()[order]
    tests = len(y) // _TEST_SHARE
    return Digits((x[tests:], y[tests:]), (x[:tests], y[:tests]))


def score(
    way: str, seed: int, folder: Path, settings: dict[str, Any], epochs: int = EPOCHS
) -> tuple[float, tuple[float, ...]]:
    """Train a small CNN with ReLU from this seed. Returns its accuracy on the test images and the epochs' losses."""
    digits = load(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    shuffle = torch.Generator().manual_seed(seed)
    x, y = digits.train
    losses = []
    with closing(training_ways.make(way, model, folder, settings)) as training:
        for _ in range(epochs):
            own = []
            for batch in torch.randperm(len(y), generator=shuffle).split(_BATCH):
                with training.forward():
                    loss = functional.cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                own.append(loss.item())
            losses.append(mean(own))
    with torch.no_grad():
        images, classes = digits.test
        right: torch.Tensor = model(images).argmax(1) == classes
        return right.double().mean().item(), tuple(losses)


def compare(
    way: str, folder: Path, settings: dict[str, Any], seeds: int, epochs: int, tell: Callable[[str, float], None]
) -> list[Accuracy]:
    """Train plainly and by the way, seed by seed."""
    found: dict[str, list[tuple[float, tuple[float, ...]]]] = {training_ways.PLAIN: [], way: []}
    for seed in range(seeds):
        for name, own in found.items():
            tell(f"{name}, seed {seed}", 0)
            own.append(score(name, seed, folder, settings, epochs))
            tell(f"{name}, seed {seed}", 1)
    return [
        Accuracy(name, tuple(right for right, _ in own), tuple(losses for _, losses in own))
        for name, own in found.items()
    ]


def noise(plain: Accuracy, tests: int) -> float:
    """The noise from the choice of the seed: plain training's standard deviation, at least one test image."""
    return max(plain.spread, 1 / tests)
