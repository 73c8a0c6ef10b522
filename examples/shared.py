"""Shared by the examples: scikit-learn's digits, arguments, and tables of two trainings' losses."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Collection, Mapping
from multiprocessing import forkserver

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor


def digits() -> tuple[Tensor, Tensor]:
    """1,797 handwritten digits, shuffled: grey values (N, 8, 8) in float32 from 0 to 16, and labels (N,)."""
    from sklearn.datasets import load_digits  # imported here: processes that only train do not need it

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(bunch.images).float()[order], torch.from_numpy(bunch.target).long()[order]


def start_importing() -> None:
    """Start the fork server, which imports what new processes need, once, in the background."""
    # torch's optimizers import torch._dynamo, which takes as long as torch itself.
    multiprocessing.set_forkserver_preload(["torch", "fastio.checkpoint", "fastio.offload", "torch._dynamo"])
    forkserver.ensure_running()


def folder(text: str) -> str:
    """Parse an argument: an existing folder."""
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text} is no folder; make it first")
    return text


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of an argument: a number of at least ``least``."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"at least {least}")
        return int(text)

    return number


def screen() -> Console:
    """The console for tables: as wide as the terminal, or 100 columns in a file."""
    return Console(width=None if sys.stdout.isatty() else 100, markup=False, highlight=False)


def show_losses(
    console: Console,
    plain: list[float],
    other: list[float],
    names: tuple[str, str],
    chosen: Collection[int] | None = None,
    notes: Mapping[int, str] | None = None,
) -> None:
    """Print the losses of two trainings by step, or at the ``chosen`` steps, and whether they are bitwise equal."""
    table = Table("step", *(f"loss, {name}" for name in names), "same bits", *([""] if notes else []))
    for step, (one, another) in enumerate(zip(plain, other, strict=True), 1):
        if chosen is None or step in chosen:
            verdict = "yes" if one == another else "NO"
            note = [notes.get(step, "")] if notes else []
            table.add_row(str(step), f"{one:.9f}", f"{another:.9f}", verdict, *note)
    console.print(table)


def show_pairs(console: Console, names: tuple[str, str], rows: Mapping[str, tuple[str, str]]) -> None:
    """Print the results of two trainings side by side."""
    table = Table("", *names)
    for label, pair in rows.items():
        table.add_row(label, *pair)
    console.print(table)
