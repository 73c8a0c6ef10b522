"""Saves and loads when no thread can be started: the process limit of the user or container is reached."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastio
import warm_python

BEGIN = """
import os, resource, sys, threading
import torch
import fastio

torch.set_num_threads(1)
tensors = {"small": torch.arange(1000), "large": torch.arange(5 << 19) + 3}  # of 8 KB, and of 20 MiB and some bytes
tensors["large"] = tensors["large"].view(torch.uint8)[: (20 << 20) - 777]
os.chdir(sys.argv[1])
fastio.save(tensors["small"], "first.pt")  # for all late imports
with fastio.Checkpointer("first", asynchronous=False) as first:
    first.save(0, tensors)
os.remove("first.pt")
os.chmod(".", 0o777)
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # limits do not apply to root
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    threading.Thread(target=print).start()
except RuntimeError:
    pass
else:
    raise AssertionError("there are threads")
"""

TRANSFERS = """
for tensor in tensors.values():
    for durable in (True, False):
        seen = []
        progress = lambda *one: seen.append(one)
        saved = fastio.save(tensor, "it.pt", policy=sys.argv[2], durable=durable, progress=progress)
        assert seen and seen[-1][0] == seen[-1][1] >= saved.nbytes, seen
        with fastio.record() as transfers:
            assert torch.equal(fastio.load("it.pt", policy=sys.argv[2]), tensor)
        assert saved.tool == sys.argv[2] and not saved.fallbacks, saved
        notes = [note for note in transfers[0].fallbacks if not note.startswith("not verified in memory")]
        assert transfers[0].tool == sys.argv[2] and not notes, transfers
"""

STEPS = """
with fastio.Checkpointer("steps", asynchronous=False, incremental=True) as checkpointer:
    for step in range(3):
        tensors["large"][step] = 77
        checkpointer.save(step, tensors)
    assert torch.equal(checkpointer.restore().state["large"], tensors["large"])
with fastio.Checkpointer("steps") as checkpointer:
    try:
        checkpointer.save(3, tensors)
    except fastio.CheckpointError as error:
        assert "asynchronous=False" in str(error), error
    else:
        raise AssertionError("it was saved without a thread")
    assert checkpointer.steps() == [0, 1, 2]
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can access, unlike pytest's."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def run(folder: Path, script: str, *arguments: str) -> None:
    environment = {**os.environ, "FASTIO_DICTIONARY_DIR": "."}
    ended = warm_python.run(BEGIN + script, str(folder), *arguments, environment=environment)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("policy", ["posix", "numpy", "torch", "uring"])
def test_save_and_load_work_without_further_threads(folder: Path, policy: str) -> None:
    if why := next(tool.reason for tool in fastio.tools() if tool.name == policy):
        pytest.skip(why)
    run(folder, TRANSFERS, policy)


def test_checkpoints_without_threads_save_synchronously_and_refuse_asynchronous_saves(folder: Path) -> None:
    run(folder, STEPS)
