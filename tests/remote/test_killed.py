"""A Checkpointer at a remote place that is killed at any moment: every visible step is whole, and none is lost."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from fastio import Checkpointer
from remote_places import names_below
from warm_python import WarmPopen

_SAVE_UNTIL_KILLED = """
import sys, torch, fastio
with fastio.Checkpointer(sys.argv[1], keep=2) as checkpointer:
    step = (checkpointer.latest() or 0) + 1
    while True:
        for _ in range(1 + (step % 3 == 0)):  # every third one twice
            checkpointer.save(step, {"value": torch.full((300_000,), float(step))})
        step += 1
"""


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.nightly)])
def test_steps_survive_kills(tmp_path: Path, kills: int) -> None:
    url, chance, last = f"file://{tmp_path}/run", random.Random(1), 1
    with Checkpointer(url) as checkpointer:
        checkpointer.save(1, {"value": torch.ones(300_000)})
    for _ in range(kills):
        with WarmPopen([sys.executable, "-c", _SAVE_UNTIL_KILLED, url]) as writer:
            time.sleep(chance.uniform(0.05, 0.8))
            writer.kill()
        assert writer.returncode == -signal.SIGKILL
        with Checkpointer(url, read_only=True) as checkpointer:
            for step in checkpointer.steps():
                restored = checkpointer.restore(step)
                assert restored is not None
                assert torch.equal(restored.state["value"], torch.full((300_000,), float(step)))
            latest = checkpointer.latest() or 0
        assert latest >= last
        last = latest
    with Checkpointer(url, keep=1) as checkpointer:
        checkpointer.save(last + 1, {"value": torch.ones(3)})
    step = f"step-{last + 1:010d}"
    assert names_below(url) == {f"{step}/manifest.json", f"{step}/state.pt"}
