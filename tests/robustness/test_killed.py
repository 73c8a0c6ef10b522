"""A save that is killed at any instant leaves the whole old file or the whole new one."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fastio
from fastio.files.atomic_file import AtomicFile
from faults import Server, objects

KILLS = {"pt": 120, "safetensors": 40, "npy": 40}
WAYS = list(itertools.product(("uring", "posix"), (True, False)))  # to save, and whether durably: in turn
NBYTES = 24 << 20
LONGEST = 0.05  # seconds: a few saves


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), None) as running:
        yield running


@pytest.mark.parametrize("name", ["it.pt", "it[0-9].pt", "i" * 220])
def test_however_many_writers_were_killed_the_next_save_clears_all_they_left(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    others = [tmp_path / ".other.pt.fastio-0123456789abcdef.tmp", tmp_path / f".{name}.fastio-notes.tmp"]
    for other in others:
        other.write_bytes(b"not a leftover of this file")
    # A temporary file is held by its open file, so one process can be twenty writers.
    code = (
        "import os, signal, sys; from fastio.files.atomic_file import AtomicFile\n"
        "writers = [AtomicFile(sys.argv[1]) for _ in range(20)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with AtomicFile(str(path)) as alive:
        killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == 21 + len(others)
        fastio.save(torch.ones(3), path)
        assert {*tmp_path.iterdir()} == {path, tmp_path / alive.temporary, *others}
    assert torch.equal(fastio.load(path), torch.ones(3))
    assert {*tmp_path.iterdir()} == {path, *others}


@pytest.mark.slow
@pytest.mark.parametrize("form", objects.FORMATS)
def test_killed_while_saving(server: Server, tmp_path: Path, form: str) -> None:
    # Seeded, so that a failure names its instant; that the instant is met again is up to the machine.
    chance = random.Random(form)
    versions = {version: objects.make(version, NBYTES, form) for version in (objects.OLD, objects.NEW)}
    for version in versions:
        server.prepare(version, NBYTES, form)
    path, ready = tmp_path / "folder" / f"it.{form}", tmp_path / "ready"
    path.parent.mkdir()
    fastio.save(versions[objects.OLD], path)
    seen: Counter[int] = Counter()
    interrupted = 0
    for turn in range(KILLS[form]):
        policy, durable = WAYS[turn % len(WAYS)]
        ready.unlink(missing_ok=True)
        child = server.start(
            "save_forever", path=str(path), policy=policy, durable=durable, nbytes=NBYTES, ready=str(ready)
        )
        while not ready.exists():
            time.sleep(0.0005)
        delay = chance.uniform(0, LONGEST)
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        outcome = child.wait()
        where = f"turn {turn}, {policy}, {durable=}, killed {delay * 1e6:.0f} us after the first save began"
        assert outcome.status == -signal.SIGKILL, f"{where}: {outcome.stderr}"
        interrupted += len(list(path.parent.iterdir())) > 1

        fastio.verify(path)
        loaded = objects.read(path)
        version = objects.claimed(loaded)
        assert objects.differ(loaded, versions[version], form) == "", where
        seen[version] += 1

        fastio.save(versions[(objects.NEW, objects.OLD)[turn // len(WAYS) % 2]], path, policy=policy, durable=False)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name], where
    # The kills did what they are for: they came before and after a rename, and most of them in the middle of a save.
    assert len(seen) == 2
    assert interrupted > KILLS[form] // 4
