"""A service imports fastio as root, below a folder that only root may enter, and then gives up root's rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastio

SERVICE = """
import os, sys
import torch
sys.path.insert(0, sys.argv[1])
import fastio
assert fastio.__file__.startswith(sys.argv[1]), fastio.__file__

def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)

def drop_rights():
    os.setgid(65534)
    os.setuid(65534)
    try:
        os.listdir(sys.argv[1])
    except PermissionError:
        return {"weight": torch.randn(100, 1000), "bias": torch.ones(3)}
    raise AssertionError("the installation can still be read")

child = os.fork()
if child == 0:
    state = drop_rights()
    exec(sys.argv[2])
    print("saved and loaded", flush=True)
    os._exit(0)
os.waitpid(child, 0)

from fastio import Checkpointer, convert, load_file, load_model, safe_open, save_file, save_model, seal
state = drop_rights()
exec(sys.argv[2] + sys.argv[3])
print("used what was imported by name")
"""

SAVE_AND_LOAD = """
for policy in ("auto", "w", "r", "w+r", "posix", "uring", "torch"):
    for name, value in (("it.pt", state), ("it.safetensors", state), ("it.npy", state["weight"])):
        fastio.save(value, name, policy=policy if name == "it.pt" or policy != "torch" else "auto")
        found = fastio.load(name)
        assert same(found, state) if isinstance(value, dict) else torch.equal(found, value)
        fastio.verify(name)
        str(fastio.explain(name))
frozen = fastio.dicts.RDic(learn=False)
assert same(fastio.load("it.pt", policy=frozen), state)
"""

BY_NAME = """
with Checkpointer("steps") as checkpointer:
    for step in range(3):
        checkpointer.save(step, state)
    checkpointer.wait()
    assert same(checkpointer.restore().state, state)
save_file(state, "model.safetensors")
assert same(load_file("model.safetensors"), state)
with safe_open("model.safetensors") as opened:
    assert torch.equal(opened.get_tensor("weight"), state["weight"])
module = torch.nn.Linear(100, 100)
save_model(module, "module.safetensors")
load_model(module, "module.safetensors")
seal("model.safetensors")
convert("it.pt", "it2.safetensors")
"""


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A copy of the installed package in a folder that only root may enter."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    shutil.copytree(Path(fastio.__file__).parent, private / "fastio", ignore=shutil.ignore_patterns("__pycache__"))
    return private


@pytest.fixture
def folder() -> Iterator[Path]:
    """A working folder that every user may write to."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")
def test_a_service_that_gave_up_its_rights_works_on(installation: Path, folder: Path) -> None:
    """After ``import fastio`` what fastio itself does; after ``from fastio import ...`` what these names do, too."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SERVICE, str(installation), SAVE_AND_LOAD, BY_NAME],
        cwd=folder,
        env={**os.environ, "FASTIO_DICTIONARY_DIR": str(folder / "dictionaries")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "saved and loaded\nused what was imported by name\n", done.stderr
