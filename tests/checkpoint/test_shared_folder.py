"""Checkpoints beside other users of a folder: readers during saves, foreign files; also dict subclasses."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from fastio.checkpoint import Checkpointer

READER = """
import sys, warnings
warnings.simplefilter("error")  # a skipped step warns
from fastio.checkpoint import Checkpointer

reader = Checkpointer(sys.argv[1], read_only=True)
print("ready", flush=True)
count = 0
for _ in range(600):
    restored = reader.restore()
    assert restored.step == 1, restored.step
    assert reader.restore(1).state["t"].sum() == 1000
    reader.verify(1)
print("read", flush=True)
"""


def test_step_stays_readable_while_it_is_saved_again(tmp_path: Path) -> None:
    state = {"t": torch.ones(1000)}
    with Checkpointer(tmp_path, keep=2) as checkpointer:
        checkpointer.save(0, {"t": torch.zeros(1000)})
        checkpointer.save(1, state)
        checkpointer.wait()
        child = subprocess.Popen(
            [sys.executable, "-c", READER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        watch = threading.Timer(120, child.kill)
        watch.start()
        while child.poll() is None:
            checkpointer.save(1, state)
        watch.cancel()
        output, errors = child.communicate()
    assert output == "read\n", errors


def test_files_of_others_in_a_steps_folder_stay(tmp_path: Path) -> None:
    def save(step: int) -> None:
        with Checkpointer(tmp_path, keep=5) as checkpointer:
            checkpointer.save(step, {"t": torch.full((3,), step)})

    save(0)
    place = tmp_path / "step-0000000000"
    (place / "notes.txt").write_text("mine")
    (place / "tensorboard").mkdir()
    (place / "tensorboard" / "events").write_text("mine, too")
    (place / ".state.pt.fastio-0.tmp").write_text("of a writer that was killed")
    (place / "state.7.pt").write_text("the same")
    for step in (1, 0):
        save(step)
    assert sorted(path.name for path in place.iterdir() if path.name not in ("state.pt", "state.1.pt")) == [
        "manifest.json",
        "notes.txt",
        "tensorboard",
    ]
    assert (place / "tensorboard" / "events").read_text() == "mine, too"
    with Checkpointer(tmp_path, read_only=True) as checkpointer:
        assert checkpointer.steps() == [0, 1]


def test_dict_subclasses_are_restored_with_their_types(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    state: dict[str, Any] = {
        "seen": Counter(a=3),
        "losses": defaultdict(list, {"train": [1.0]}),
        "order": OrderedDict(z=1, a=2),
        "model": model.state_dict(),
    }
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state)
        with pytest.raises(pickle.UnpicklingError, match="defaultdict"):  # as torch.load does
            checkpointer.restore()
        found = checkpointer.restore(weights_only=False)
        assert found is not None
        assert found.state == state | {"model": found.state["model"]}
        kinds = {"seen": Counter, "losses": defaultdict, "order": OrderedDict, "model": OrderedDict}
        assert {name: type(found.state[name]) for name in kinds} == kinds
        assert found.state["model"]._metadata == state["model"]._metadata
        live = {"seen": Counter(b=1), "losses": defaultdict(list), "order": OrderedDict(), "model": model}
        held = dict(live)
        checkpointer.restore(into=live, weights_only=False)
    assert all(live[name] is held[name] for name in held)
    assert {name: live[name] for name in ("seen", "losses", "order")} == {
        name: state[name] for name in ("seen", "losses", "order")
    }
    live["losses"]["test"].append(0.5)


def test_restoring_into_a_tensor_counts_as_a_modification_for_autograd(tmp_path: Path) -> None:
    kept = torch.ones(1000)
    w = torch.ones(1000, requires_grad=True)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"kept": kept})
        result = (kept * w).sum()
        checkpointer.restore(into={"kept": kept})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
