"""``fastio inspect`` of folders of checkpoints, and ``--json`` of every subcommand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import torch.distributed.checkpoint as dcp

import fastio
from commands import run
from fastio_command.commands import cli


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


def test_diff_takes_folders_of_steps(saved: Path, tmp_path: Path) -> None:
    with fastio.Checkpointer(tmp_path / "other") as checkpointer:
        for step in (3, 21):
            checkpointer.save(step, {"w": torch.ones(1000), "step": step})
    both = run("diff", saved, tmp_path / "other")
    assert "equal: 1 tensor" in both.stdout
    assert f"{saved}/step-0000000003/state.pt and {tmp_path}/other/step-0000000003/state.pt" in both.stderr
    one = run("diff", saved / "step-0000000020", tmp_path / "other")
    assert f"{saved}/step-0000000020/state.pt and {tmp_path}/other/step-0000000021/state.pt" in one.stderr


def test_convert_and_explain_take_the_newest_step(saved: Path, tmp_path: Path) -> None:
    newest = saved / "step-0000000020" / "state.pt"
    found = run("convert", saved, tmp_path / "new.safetensors", "--key", "w")
    assert f"taken is {newest}" in found.stderr
    assert torch.equal(fastio.load_file(tmp_path / "new.safetensors")["w"], torch.ones(1000))
    assert f"taken is {newest}" in run("explain", saved).stderr
    one = saved / "step-0000000003"
    assert f"taken is {one}/state.pt" in run("explain", one, "--op", "save").stderr


def test_explain_says_what_to_do_with_a_folder_of_ranks(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"it")
    said = run("explain", tmp_path, status=2).stderr
    assert "torch.distributed.checkpoint" in said
    assert "expected a file: name a file in it" in said


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
    assert "torch.distributed.checkpoint, 1 file, " in said
    assert "object: step" in said
    found = json.loads(run("inspect", tmp_path / "dcp", "--json").stdout)
    tensors = {one["name"]: (one["dtype"], one["shape"], one["nbytes"]) for one in found["tensors"]}
    assert tensors == {"model.w": ("float32", [4, 5], 80), "model.b": ("bfloat16", [3], 6)}
    assert (found["format"], found["objects"]) == ("dcp", ["step"])
    (tmp_path / "dcp" / ".metadata").write_bytes(b"it")
    assert ".metadata" in run("inspect", tmp_path / "dcp", status=2).stderr


def damage(path: Path, what: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(what) + 5] ^= 1
    path.write_bytes(content)


def statuses(path: Path, status: int) -> dict[str, str]:
    found = json.loads(run("verify", path, "--json", status=status).stdout)
    return {str(Path(one["path"]).relative_to(path)): one["status"] for one in found}


def test_verify_compares_each_step_of_a_checkpointer(saved: Path) -> None:
    lines = run("verify", saved).stdout.splitlines()
    assert [line.partition(": verified: 1 file, ")[0] for line in lines] == [
        f"{saved}/step-{step:010d}" for step in (3, 20)
    ]
    damage(saved / "step-0000000003" / "state.pt", torch.ones(9).numpy().tobytes())
    result = run("verify", saved, status=1)
    assert result.stdout.startswith(f"{saved}/step-0000000020: verified")
    assert "state.pt: record 'data/0' (tensor" in result.stderr
    assert "verify=False" not in result.stderr
    run("verify", saved / "step-0000000020")
    run("verify", saved / "step-0000000003", status=1)
    (saved / "step-0000000020" / "manifest.json").write_text("{}")
    assert statuses(saved, 1) == {"step-0000000003": "damaged", "step-0000000020": "damaged"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by", ["torch", "fastio"])
def test_verify_compares_each_data_file_of_a_distributed_checkpoint(tmp_path: Path, by: str) -> None:
    from fastio.distributed import Writer

    weight = torch.arange(9000.0)
    state: dict[str, Any] = {"w": weight, "t": torch.ones(4, 5).t(), "one": torch.tensor(3), "step": 3, "n": []}
    folder = tmp_path / "dcp"
    dcp.save(state, checkpoint_id=folder, storage_writer=Writer(folder) if by == "fastio" else None)
    (name,) = (one.name for one in folder.glob("*.distcp"))
    (line,) = run("verify", folder).stdout.splitlines()
    assert line.startswith(f"{folder}/{name}: verified: 5 items, ")
    for what in (weight.numpy().tobytes(), pickled_step(folder / name)):
        content = (folder / name).read_bytes()
        damage(folder / name, what)
        assert name in run("verify", folder, status=1).stderr
        (folder / name).write_bytes(content)
    assert statuses(folder, 0) == {name: "verified"}
    os.truncate(folder / name, len(content) // 2)
    assert statuses(folder, 1) == {name: "damaged"}
    (folder / name).unlink()
    assert statuses(folder, 2) == {name: "unreadable"}
    (folder / ".metadata").write_bytes(b"it")
    assert statuses(folder, 1) == {".metadata": "damaged"}


def pickled_step(path: Path) -> bytes:
    """The bytes of the object ``step`` in a data file."""
    content = path.read_bytes()
    at = content.index(b"K\x03.")
    return content[at - 5 : at + 3]


@pytest.mark.filterwarnings("ignore")
def test_items_without_checksums_are_counted(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        dcp.save({"w": torch.ones(3000), "step": 3}, checkpoint_id=tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert ": not verified: dcp: 2 of its 2 items have no checksums" in run("verify", tmp_path).stdout


def test_verify_compares_each_shard_and_then_the_index(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(30, 30, bias=False) for _ in range(4)))
    fastio.save_model(model, tmp_path, max_shard_size=3600)
    one, two, three, _ = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert list(statuses(tmp_path, 0).values()) == ["verified"] * 4
    index = tmp_path / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(text.replace("0.weight", "00.weight"))
    *sound, last = json.loads(run("verify", tmp_path, "--json", status=1).stdout)
    assert {each["status"] for each in sound} == {"verified"}
    assert (last["path"], last["status"]) == (str(index), "damaged")
    index.write_text(text)
    (tmp_path / three).unlink()
    assert statuses(tmp_path, 2)[three] == "unreadable"
    damage(tmp_path / one, model[0].weight.detach().numpy().tobytes())
    os.truncate(tmp_path / two, 20)
    found = statuses(tmp_path, 1)
    assert [found[name] for name in (one, two, three)] == ["damaged", "damaged", "unreadable"]
    assert "names this file for 1 tensor (" in run("seal", tmp_path, status=1).stderr


@pytest.mark.filterwarnings("ignore")
def test_seal_says_that_checkpoints_have_checksums(saved: Path, tmp_path: Path) -> None:
    dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "dcp")
    for folder in (saved, saved / "step-0000000003", tmp_path / "dcp"):
        said = run("seal", folder, status=2).stderr
        assert "which have checksums of their own; expected files of safetensors: `fastio verify` compares" in said


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
    volume = tmp_path / "volume"
    arguments: dict[tuple[str, ...], tuple[tuple[object, ...], set[str]]] = {
        ("inspect",): ((path,), {"path", "format", "tensors"}),
        ("verify",): ((path,), {"path", "status", "problem"}),
        ("seal",): ((path,), {"path", "sidecar", "tensors"}),
        ("convert",): ((path, tmp_path / "b.pt"), {"source", "destination", "nbytes"}),
        ("diff",): ((path, path), {"first", "second", "equal", "differences"}),
        ("volume", "create"): ((volume, "1MiB"), {"volume", "nbytes"}),
        ("cp",): ((path, f"file:{volume}"), {"source", "destination", "nbytes"}),
        ("ls",): ((volume,), {"volume", "nbytes", "free_nbytes", "objects"}),
        ("rm",): ((f"file:{volume}/a.safetensors",), {"path", "status", "problem"}),
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
