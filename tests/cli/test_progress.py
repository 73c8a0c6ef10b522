"""Long work of the command tells how far it is: a bar on a terminal, plain lines else; short work nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from commands import run

NBYTES = 20 << 20  # read by a thread, which is watched


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.ones(NBYTES // 8), "b": torch.zeros(NBYTES // 8)}


@pytest.fixture
def commands(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, list[object]]:
    fastio.save(tensors, tmp_path / "a.pt")
    fastio.save_file(tensors, tmp_path / "b.safetensors", checksums=False)
    return {
        "verifying a.pt": ["verify", tmp_path / "a.pt"],
        "sealing b.safetensors": ["seal", tmp_path / "b.safetensors"],
        "converting to c.safetensors": ["convert", tmp_path / "a.pt", tmp_path / "c.safetensors", "--force"],
    }


@pytest.mark.usefixtures("progress_at_once")
def test_long_work_prints_lines_without_a_terminal(commands: dict[str, list[object]]) -> None:
    for label, arguments in commands.items():
        result = run(*arguments)
        assert re.fullmatch(rf"{re.escape(label)}: 20 MiB in [\d.]+ s, [\d,]+ MB/s\n", result.stderr), result.stderr
        assert label.split()[0] not in result.stdout


@pytest.mark.usefixtures("progress_at_once")
def test_long_work_draws_a_bar_on_a_terminal(
    commands: dict[str, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.progress._has_terminal", lambda: True)
    for label, arguments in commands.items():
        assert re.search(rf"{re.escape(label[:20])}.* 21\.0/21\.0 MB", run(*arguments).stderr)


@pytest.mark.usefixtures("progress_at_once")
def test_json_has_no_progress_beside_it(commands: dict[str, list[object]]) -> None:
    for arguments in commands.values():
        result = run(*arguments, "--json")
        assert json.loads(result.stdout)
        assert result.stderr == ""


def test_short_work_says_nothing(commands: dict[str, list[object]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.engine.delayed_progress._SECONDS", 3600.0)
    for arguments in commands.values():
        assert run(*arguments).stderr == ""


def test_a_folder_is_told_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line comes when its file was checked: of a long model that is progress, too."""
    fastio.save_model(torch.nn.Linear(64, 64), tmp_path, max_shard_size="1KiB")
    said: list[str] = []
    seen: list[int] = []
    check = fastio.verify

    def watched(path: str, **options: Any) -> Any:
        seen.append(len(said))
        return check(path, **options)

    monkeypatch.setattr("fastio.cli.verify_command.verify_file", watched)
    monkeypatch.setattr("fastio.cli.verify_command.click.echo", lambda text, **_: said.append(text))
    run("verify", tmp_path)
    assert seen == list(range(len(said)))
    assert len(said) > 1


@pytest.mark.parametrize("hashes", [False, True])
def test_verify_and_seal_tell_a_function_of_their_progress(
    tmp_path: Path, tensors: dict[str, torch.Tensor], hashes: bool
) -> None:
    fastio.save(tensors, tmp_path / "a.pt")
    fastio.save_file(tensors, tmp_path / "b.safetensors", checksums=False)
    calls: list[tuple[str, Callable[..., Any]]] = [
        ("a.pt", fastio.verify),
        ("b.safetensors", lambda path, progress: fastio.seal(path, hashes=hashes, progress=progress)),
        ("b.safetensors", fastio.verify),
    ]
    for name, call in calls:
        told: list[tuple[int, int]] = []
        call(tmp_path / name, progress=lambda done, total, told=told: told.append((done, total)))
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1] >= NBYTES
        assert {total for _, total in told} == {told[-1][1]}
