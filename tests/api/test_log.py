"""The logger ``fastio`` at level DEBUG has a line for each transfer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import fastio


def test_each_transfer_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, path = {"a": torch.arange(50_000)}, tmp_path / "a.pt"
    with caplog.at_level(logging.DEBUG, "fastio"), fastio.record() as transfers:
        fastio.save(state, path, policy="posix")
        fastio.load(path)
        fastio.save_file(state, tmp_path / "a.safetensors")
        with fastio.safe_open(tmp_path / "a.safetensors") as reader:
            reader.get_tensor("a")
        with fastio.Checkpointer(tmp_path / "run", asynchronous=False) as checkpointer:
            checkpointer.save(1, state)
            checkpointer.restore()
    lines = [record.getMessage() for record in caplog.records if record.name == "fastio"]
    assert len(lines) == len(transfers) >= 6
    first, saved = lines[0], transfers[0]
    assert first.startswith(f"saved {path}: 400000 bytes (391 KiB) by posix ({saved.route}, durable, verified) in ")
    assert f" in {saved.seconds:.6f} s, {saved.bandwidth / 1e9:.3f} GB/s; it was asked for" in first
    assert lines[1].startswith(f"loaded {path}: 400000 bytes (391 KiB) by {transfers[1].tool} (")
    assert all("\n" not in line and "0x" not in line for line in lines)


def test_a_fallback_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "fastio"):
        fastio.save({"a": torch.ones(2)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert "by torch (library" in caplog.text
    assert "the legacy format was asked for" in caplog.text


def test_nothing_is_formatted_without_a_listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.results._line", lambda transfer: pytest.fail("a line was made"))
    assert not logging.getLogger("fastio").isEnabledFor(logging.DEBUG)
    fastio.save({"a": torch.ones(2)}, tmp_path / "a.pt")
