"""``make demo``'s main part, on a small state dict: its output, and its exit status on errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from benching import on_disk
from fastio_bench import demo
from fastio_bench.peers.compare import WORKS
from fastio_bench.workloads import objects


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(on_disk(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_demo_succeeds_and_prints_its_claims(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ROUNDS", 1)
    monkeypatch.setattr(demo, "LEARNING_ROUNDS", 1)
    workload = objects.find("toy")
    assert demo.main(workload) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert [title for title, _ in demo.STEPS if title not in said] == []
    assert [work for work in WORKS if f"{work} │ torch │" not in said] == []
    assert said.count("│ fastio │") == len(WORKS)
    assert f"all {workload.count} tensors equal, bit by bit" in said
    assert "flipped. torch.load accepts the file, with a wrong value in" in said
    assert "fastio.load refuses it: data/" in said
    assert "save of 569 KiB (582 KB) as pt" in said
    assert said.count("load of 569 KiB (582 KB) as pt") == 2
    assert "all as it should be" in said
    assert list(folder.iterdir()) == []


def test_runs_fewer_rounds_with_a_note_if_time_is_short(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "RACE_SECONDS", 0.0)
    monkeypatch.setattr(demo, "LEARNING_ROUNDS", 1)
    monkeypatch.setattr(demo, "STEPS", [("race", demo.race)])
    assert demo.main(objects.find("toy")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("│ fastio │") == len(WORKS)
    assert "would take too long on this machine: durable save 1, save 1, cold load 1, warm load 1" in said


def saves_another(thing: dict[str, torch.Tensor], path: Path) -> fastio.SaveResult:
    """A save of which one bit is wrong."""
    name, tensor = next(iter(thing.items()))
    bits = tensor.clone().view(torch.int32)
    bits.view(-1)[0] ^= 1
    return fastio.save({**thing, name: bits.view(tensor.dtype)}, path)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"save": saves_another}, "torch.load('toy.pt') gives other bits for "),
        ({"load": torch.load}, "fastio.load accepted a file with a wrong byte"),
    ],
    ids=["save", "load"],
)
def test_fails_with_the_reason(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: dict[str, Any],
    problem: str,
) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            return broken.get(name) or getattr(fastio, name)

    monkeypatch.setattr(demo, "fastio", Broken())
    monkeypatch.setattr(demo, "STEPS", [("one", demo.read_with_torch), ("two", demo.flip_a_byte)])
    assert demo.main(objects.find("toy")) == 1
    said = capsys.readouterr().out
    assert f"wrong: {problem}" in said
    assert "all as it should be" not in said
    assert list(folder.iterdir()) == []
