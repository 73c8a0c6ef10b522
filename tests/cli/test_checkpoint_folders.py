"""``fastio inspect`` of folders of checkpoints, and ``--json`` of every subcommand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner, Result

import fastio
from fastio_command.commands import cli


def run(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with fastio.Checkpointer(tmp_path / "run") as checkpointer:
        for step in (3, 20):
            checkpointer.save(step, {"w": torch.ones(1000), "step": step}, {"loss": step / 10})
    return tmp_path / "run"


def test_steps_of_a_checkpointer_are_listed(saved: Path) -> None:
    said = run("inspect", saved).stdout
    assert "checkpoints of fastio.Checkpointer, 2 steps" in said
    assert '{"loss": 0.3}' in said
    assert f"fastio inspect {saved}/step-0000000020/state.pt" in said
    found = json.loads(run("inspect", saved, "--json").stdout)
    assert [(one["step"], one["nbytes"], one["metadata"]) for one in found["steps"]] == [
        (3, 4000, {"loss": 0.3}),
        (20, 4000, {"loss": 2.0}),
    ]
    assert "w " in run("inspect", saved / "step-0000000020" / "state.pt").stdout


def test_one_step_and_a_damaged_one(saved: Path) -> None:
    assert "1 step\n" in run("inspect", saved / "step-0000000003").stdout
    manifest = saved / "step-0000000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("0.3", "0.4"))
    found = json.loads(run("inspect", saved, "--json").stdout)["steps"]
    assert "manifest.json" in found[0]["problem"]
    assert found[1]["problem"] == ""
    assert "manifest.json" in run("inspect", saved / "step-0000000003").stdout


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by", ["torch", "fastio"])
def test_a_distributed_checkpoint_is_listed(tmp_path: Path, by: str) -> None:
    state: dict[str, Any] = {"model": {"w": torch.ones(4, 5), "b": torch.ones(3, dtype=torch.bfloat16)}, "step": 3}
    writer = None
    if by == "fastio":
        from fastio.distributed import Writer

        writer = Writer(tmp_path / "dcp")
    dcp.save(state, checkpoint_id=tmp_path / "dcp", storage_writer=writer)
    said = run("inspect", tmp_path / "dcp").stdout
    assert "torch.distributed.checkpoint, 1 files" in said
    assert "object: step" in said
    found = json.loads(run("inspect", tmp_path / "dcp", "--json").stdout)
    tensors = {one["name"]: (one["dtype"], one["shape"], one["nbytes"]) for one in found["tensors"]}
    assert tensors == {"model.w": ("float32", [4, 5], 80), "model.b": ("bfloat16", [3], 6)}
    assert (found["format"], found["objects"]) == ("dcp", ["step"])
    (tmp_path / "dcp" / ".metadata").write_bytes(b"it")
    assert ".metadata" in run("inspect", tmp_path / "dcp", status=2).stderr


def test_a_folder_without_any_is_an_error(tmp_path: Path) -> None:
    assert "found no file of safetensors" in run("inspect", tmp_path, status=2).stderr


def commands(group: click.Group, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        where = (*before, name)
        found += commands(command, where) if isinstance(command, click.Group) else [where]
    return found


def test_every_subcommand_prints_one_document_of_json(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(tmp_path / "dictionaries"))
    fastio.save({"w": torch.ones(2)}, path := tmp_path / "a.safetensors")
    arguments: dict[tuple[str, ...], tuple[tuple[object, ...], set[str]]] = {
        ("inspect",): ((path,), {"path", "format", "tensors"}),
        ("verify",): ((path,), {"path", "status", "problem"}),
        ("seal",): ((path,), {"path", "sidecar", "tensors"}),
        ("convert",): ((path, tmp_path / "b.pt"), {"source", "destination", "nbytes"}),
        ("diff",): ((path, path), {"first", "second", "equal", "differences"}),
        ("explain",): (("1MiB",), {"tool", "reason", "confidence", "entries"}),
        ("tools",): ((), {"name", "available", "reason", "cure"}),
        ("dictionaries", "show"): ((), {"folder", "dictionaries"}),
        ("dictionaries", "clear"): (("--yes",), {"folder", "removed"}),
        ("dictionaries", "tune"): ((tmp_path, "--largest", "1MiB", "--rounds", 1), {"nbytes", "works"}),
        ("doctor",): (("--dir", tmp_path), {"folder", "machine", "tools"}),
    }
    assert set(commands(cli)) == set(arguments)
    for command, (given, keys) in arguments.items():
        found = json.loads(run(*command, *given, "--json").stdout)
        one = found[0] if isinstance(found, list) else found
        assert keys <= one.keys(), command
