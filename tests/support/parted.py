"""A state of equal parts for incremental Checkpointers, and checks of restored steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fastio.checkpoint import Checkpointer
from trainings import folder_of

PARTS = 10
PART_BYTES = 256 << 10


def make() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    state: dict[str, Any] = {
        f"part{n}": torch.randint(0, 256, (PART_BYTES,), dtype=torch.uint8, generator=generator) for n in range(PARTS)
    }
    return state | {"small": torch.arange(3), "empty": torch.empty(0), "count": 0}


@contextmanager
def changed_once(folder: Path) -> Iterator[tuple[Checkpointer, dict[str, Any]]]:
    """An incremental Checkpointer that has saved a state as step 0, and the state, with one part changed since."""
    state = make()
    with Checkpointer(folder, incremental=True) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        state["part0"].add_(1)
        yield checkpointer, state


def check(checkpointer: Checkpointer, step: int, expected: dict[str, Any]) -> None:
    """Check that a step verifies, and restores the saved state into new tensors and into existing ones."""
    checkpointer.verify(step)
    restored = checkpointer.restore(step)
    live = {name: torch.zeros_like(value) for name, value in expected.items() if isinstance(value, torch.Tensor)}
    checkpointer.restore(step, into=live)
    assert restored is not None
    assert list(restored.state) == list(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(restored.state[name], value), name
            assert torch.equal(live[name], value), name
        else:
            assert restored.state[name] == value


def files_of(folder: Path, step: int) -> list[str]:
    """The names of a step's files, in its manifest's order."""
    return [file["name"] for file in json.loads((folder_of(folder, step) / "manifest.json").read_text())["files"]]
