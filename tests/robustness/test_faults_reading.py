"""Loads of a file without checksums that shrinks or fails meanwhile: an error that names it, never a crash."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import fastio
from faults import ALWAYS, NOTHING, SHORTER, Fault, Server

NBYTES = 16 << 20
LOADS = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "it.safetensors"
    fastio.save({"ones": torch.ones(NBYTES, dtype=torch.uint8)}, target, durable=False)
    return target


@pytest.mark.parametrize("tool", ["uring", "posix", "torch", "numpy", "memory"])
def test_load_survives_concurrent_truncation_of_the_file(server: Server, tmp_path: Path, path: Path, tool: str) -> None:
    ready = tmp_path / "ready"
    child = server.start("load_ones", path=str(path), policy=tool, times=LOADS, ready=str(ready))
    ended = threading.Event()

    def disturb() -> None:
        size = path.stat().st_size
        while not ended.is_set():
            if ready.exists():
                os.truncate(path, size // 3)
                os.truncate(path, size)

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    try:
        outcome = child.wait()
    finally:
        ended.set()
        disturbing.join()
    assert outcome.status == 0, f"it ended with status {outcome.status}\n{outcome.stderr}"
    assert sum(outcome.result.values()) == LOADS
    assert set(outcome.result) <= {"right", "FastIOError"}, outcome.result


@pytest.mark.parametrize("tool", ["posix", "torch", "numpy"])
@pytest.mark.parametrize(
    ("effect", "error"), [(errno.EIO, "TransferError"), (NOTHING, "CorruptFileError"), (SHORTER, None)]
)
def test_failed_reads_raise_and_short_reads_are_completed(
    server: Server, path: Path, tool: str, effect: int, error: str | None
) -> None:
    for first in (2, 3, 4):  # the header's length, the header, the tensor; the first read detects the format
        fault = Fault("read", effect, first, ALWAYS)
        result = server.run("read_ones", path=str(path), policy=tool, fault=asdict(fault))
        assert result["strikes"] >= 1
        assert result["right"]
        if error is None:
            assert result["error"] is None
            continue
        assert result["error"]["type"] == error
        assert str(path) in result["error"]["message"]
        if effect == errno.EIO:
            assert result["error"]["errno"] == errno.EIO
            assert result["error"]["filename"] == str(path)
