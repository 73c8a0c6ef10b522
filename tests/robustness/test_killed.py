"""A save that is killed at any moment leaves the complete old or the complete new file."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import fastio
import warm_python
from fastio.files.atomic_file import AtomicFile
from faults import Server, objects

KILLS = {"pt": 120, "safetensors": 40, "npy": 40}  # by night
WAYS = list(itertools.product(("uring", "posix"), (True, False)))  # (policy, durable), used in turn
NBYTES = 24 << 20
LONGEST = 0.05  # seconds: a few saves


@pytest.mark.parametrize("name", ["it.pt", "it[0-9].pt", "i" * 220])
def test_next_save_removes_the_leftovers_of_all_killed_writers(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    others = [tmp_path / ".other.pt.fastio-0123456789abcdef.tmp", tmp_path / f".{name}.fastio-notes.tmp"]
    for other in others:
        other.write_bytes(b"not a leftover of this file")
    # The lock belongs to the open file, so one process can be twenty writers.
    code = (
        "import os, signal, sys; from fastio.files.atomic_file import AtomicFile\n"
        "writers = [AtomicFile(sys.argv[1]) for _ in range(20)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with AtomicFile(str(path)) as alive:
        killed = warm_python.run(code, str(path), timeout=600)
        assert killed.returncode == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == 21 + len(others)
        fastio.save(torch.ones(3), path)
        assert {*tmp_path.iterdir()} == {path, tmp_path / alive.temporary, *others}
    assert torch.equal(fastio.load(path), torch.ones(3))
    assert {*tmp_path.iterdir()} == {path, *others}


@pytest.mark.slow
@pytest.mark.parametrize("share", [5, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("form", objects.FORMATS)
def test_a_killed_save_leaves_a_complete_file(plain_server: Server, tmp_path: Path, form: str, share: int) -> None:
    # Seeded, so a failure reports its delay; the machine decides whether the same delay hits the same moment again.
    chance = random.Random(form)
    versions = {version: objects.make(version, NBYTES, form) for version in (objects.OLD, objects.NEW)}
    for version in versions:
        plain_server.prepare(version, NBYTES, form)
    path, ready = tmp_path / "folder" / f"it.{form}", tmp_path / "ready"
    path.parent.mkdir()
    fastio.save(versions[objects.OLD], path)
    seen: Counter[int] = Counter()
    interrupted = 0
    kills = KILLS[form] // share
    for turn in range(kills):
        policy, durable = WAYS[turn % len(WAYS)]
        ready.unlink(missing_ok=True)
        child = plain_server.start(
            "save_forever", path=str(path), policy=policy, durable=durable, nbytes=NBYTES, ready=str(ready)
        )
        while not ready.exists():
            time.sleep(0.0005)
        killed = child.killed_after(chance.uniform(0, LONGEST))
        where = f"turn {turn}, {policy}, {durable=}, {killed} after the first save began"
        interrupted += len(list(path.parent.iterdir())) > 1

        fastio.verify(path)
        loaded = objects.read(path)
        version = objects.claimed(loaded)
        assert objects.differ(loaded, versions[version], form) == "", where
        seen[version] += 1

        fastio.save(versions[(objects.NEW, objects.OLD)[turn // len(WAYS) % 2]], path, policy=policy, durable=False)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name], where
    # The kills came both before and after a rename, and many of them during a save.
    assert len(seen) == 2
    assert interrupted > kills // 10
