"""Folders that others wrote to: nothing outside is read or written, and no foreign file is removed."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import warm_python
from fastio import _native
from fastio.checkpoint import Checkpointer
from fastio.errors import CheckpointError, CorruptFileError
from trainings import folder_of, is_of, state_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with steps 1 and 2; step 2 links to a file of step 1."""
    folder = tmp_path / "run"
    with Checkpointer(folder, incremental=True) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state_of(step))
    return folder


def check_step_2_is_lost_alone(folder: Path) -> None:
    """Check that step 2 counts as damaged, step 1 is restored instead, and saves continue."""
    with Checkpointer(folder, read_only=True) as reader:
        assert reader.latest() in (1, 2)
        with pytest.raises(CorruptFileError):
            reader.restore(2)
        with pytest.raises(CorruptFileError):
            reader.verify(2)
        with pytest.warns(RuntimeWarning, match="step 2 is skipped"):
            restored = reader.restore()
    assert restored is not None
    assert is_of(restored.state, 1)
    with Checkpointer(folder, keep=1) as checkpointer:
        checkpointer.save(3, state_of(3))
        checkpointer.wait()
        assert checkpointer.latest() == 3
        assert is_of(checkpointer.restore(3).state, 3)  # type: ignore[union-attr]


# Manifests

UNREADABLE: dict[str, bytes] = {
    "nothing": b"",
    "no UTF-8": b"\xff\xfe{}",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"manifest"',
    "a number": b"1e333332",
    "no object at all": b"{",
    "an empty object": b"{}",
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a number of many digits": b'{"version": ' + b"9" * 10_000 + b"}",
    "not a number": b'{"format": "fastio-checkpoint", "version": NaN}',
    "an endless version": b'{"format": "fastio-checkpoint", "version": 1e999}',
}


def with_crc(fields: dict[str, Any]) -> str:
    """Return the text of a manifest with the right CRC-32."""
    value = _native.crc32(json.dumps({**fields, "crc32": ""}).encode())
    return json.dumps({**fields, "crc32": f"{value:08x}"}) + "\n"


def files(*names: Any) -> dict[str, Any]:
    return {"files": [{"name": name, "nbytes": 3, "crc32": "00000000"} for name in names], "elsewhere": {}}


SEALED: dict[str, dict[str, Any]] = {
    "step of another type": {"step": True},
    "step that is not an integer": {"step": 2.0},
    "endless order": {"order": float("inf")},
    "order that is no number": {"order": float("nan")},
    "order below zero": {"order": -1},
    "order of many bits": {"order": 1 << 63},
    "size of another type": {"nbytes": None},
    "date of another type": {"saved": 5},
    "no files": {"files": []},
    "files of another type": {"files": {"name": "state.pt"}},
    "file in the folder above": files("../step-0000000001/state.pt"),
    "file from the root": files("/etc/hostname"),
    "file in a folder": files("sub/state.pt"),
    "file of another name": files("secret.pt"),
    "file with a zero in its name": files("state.pt\0"),
    "file without a name": files(""),
    "file with a name of another type": files(7),
    "record in a file that is not there": {"elsewhere": {"data/0": [5, "data/0"]}},
    "record in its own file": {"elsewhere": {"data/0": [0, "data/0"]}},
    "record in a file before the first": {"elsewhere": {"data/0": [-1, "data/0"]}},
    "record of another type": {"elsewhere": {"data/0": [1, 7]}},
    "record that the file does not have": {"elsewhere": {"data/0": [1, "data/77"]}},
    "metadata of another type": {"metadata": [1]},
    "metadata that is no number": {"metadata": {"loss": float("nan")}},
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_manifest_damages_only_its_step(folder: Path, name: str) -> None:
    (folder_of(folder, 2) / "manifest.json").write_bytes(UNREADABLE[name])
    check_step_2_is_lost_alone(folder)


@pytest.mark.parametrize("name", SEALED)
def test_wrong_manifest_values_with_a_right_crc_damage_only_their_step(folder: Path, name: str) -> None:
    path = folder_of(folder, 2) / "manifest.json"
    path.write_text(with_crc(json.loads(path.read_text()) | SEALED[name]))
    check_step_2_is_lost_alone(folder)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "others").write_text("kept")


def make_link(path: Path) -> None:
    """Make a link to a file that would be valid if links were followed."""
    path.symlink_to(shutil.move(path.with_name(path.name + ".old"), path.parent.parent.parent / "outside"))


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("make", [make_pipe, make_folder, make_link, make_loop, make_large])
@pytest.mark.parametrize("name", ["manifest.json", "changes.pt", "step-0000000001.1.state.pt"])
def test_file_that_is_not_regular_damages_only_its_step(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    path = folder_of(folder, 2) / name
    path.rename(path.with_name(name + ".old"))
    make(path)
    check_step_2_is_lost_alone(folder)
    assert make is make_large or os.path.lexists(path)  # pruning step 2 removes only regular files
    if path.is_dir():
        assert (path / "others").read_text() == "kept"


# Locks


def precious(folder: Path) -> Path:
    path = folder.parent / "precious"
    path.write_text("precious")
    return path


LOCKS: dict[str, Callable[[Path], object]] = {
    "a link": lambda lock: lock.symlink_to(precious(lock.parent)),
    "a link to nothing": lambda lock: lock.symlink_to(lock.parent.parent / "precious"),
    "a hard link": lambda lock: os.link(precious(lock.parent), lock),
    "a folder": lambda lock: lock.mkdir(),
    "a pipe": os.mkfifo,
    "a file of others": lambda lock: lock.write_text("pid 7\n"),
    "a long file of others": lambda lock: lock.write_text("process 7 on here\n" * 100),
}


@pytest.mark.parametrize("name", LOCKS)
def test_foreign_lock_file_raises_and_is_not_written_to(folder: Path, name: str) -> None:
    lock = folder / ".lock"
    lock.unlink()
    LOCKS[name](lock)
    before = lock.read_bytes() if lock.is_file() else b""
    with pytest.raises(CheckpointError, match=r"\.lock: .*remove it, or use another folder"):
        Checkpointer(folder)
    assert (lock.read_bytes() if lock.is_file() else b"") == before
    assert (folder.parent / "precious").exists() == (name in ("a link", "a hard link"))
    with Checkpointer(folder, read_only=True) as reader:
        assert reader.latest() == 2
    lock.rmdir() if lock.is_dir() else lock.unlink()
    Checkpointer(folder).close()


# What is removed


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_folders_of_others_are_unchanged(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    for name in ("step-5", "step-000000001000", "step-0000000007", "step-0000000008", "steps", "step-00000000011"):
        (run / name / "sub").mkdir(parents=True)
        for file in ("state.pt", "changes.1.pt", "model.safetensors", "sub/notes"):
            (run / name / file).write_text(name + file)
    (run / "step-0000000009").mkdir()
    outside.mkdir()
    (outside / "state.pt").write_text("outside")
    (outside / ".manifest.json.fastio-0.tmp").write_text("outside")
    (run / "step-0000000010").symlink_to(outside)
    (run / "step-0000000011").write_text("a file")
    before = contents(tmp_path)
    for _ in range(2):
        with Checkpointer(run, keep=1) as checkpointer:
            assert checkpointer.steps() in ([], [2])
            for step in (1, 2):
                checkpointer.save(step, state_of(step))
            checkpointer.prune()
            assert checkpointer.steps() == [2]
    assert {name: data for name, data in contents(tmp_path).items() if name in before} == before
    assert (run / "step-0000000009").is_dir()


def test_step_is_saved_beside_files_of_others(tmp_path: Path) -> None:
    place = folder_of(tmp_path, 1)
    place.mkdir()
    for name in ("state.pt", "model.safetensors"):
        (place / name).write_text("of others")
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(1, state_of(1))
        checkpointer.wait()
        assert sorted(os.listdir(place)) == ["manifest.json", "model.safetensors", "state.1.pt", "state.pt"]
        assert (place / "state.pt").read_text() == "of others"
        (place / "notes").write_text("of the user")
        (place / "state.9.pt").mkdir()
        checkpointer.save(2, state_of(2))
        checkpointer.prune()
        assert checkpointer.steps() == [2]
    assert {"model.safetensors", "notes", "state.9.pt"} <= set(os.listdir(place))
    assert not {"manifest.json", "state.1.pt"} & set(os.listdir(place))


@pytest.mark.parametrize("kind", ["link", "file", "manifest"])
def test_something_else_in_a_steps_place_raises_and_is_unchanged(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    if kind == "link":
        folder_of(run, 1).symlink_to(outside)
    elif kind == "file":
        folder_of(run, 1).write_text("precious")
    else:
        folder_of(run, 1).mkdir()
        (folder_of(run, 1) / "manifest.json").symlink_to(outside / "manifest.json")
    before = contents(tmp_path)
    with Checkpointer(run) as checkpointer:
        checkpointer.save(1, state_of(1))
        with pytest.raises(CheckpointError, match=r"step-0000000001.*is not replaced; move it away"):
            checkpointer.wait()
        checkpointer.save(2, state_of(2))
        checkpointer.wait()
        assert checkpointer.steps() == [2]
    assert {name: data for name, data in contents(tmp_path).items() if name in before} == before
    assert sorted(os.listdir(outside)) == ["manifest.json"]


def test_killed_removal_is_finished_by_the_next_writer(folder: Path) -> None:
    place = folder_of(folder, 1)
    (place / "notes").write_text("of the user")
    (place / "manifest.json").rename(place / ".manifest.json.fastio-hidden.tmp")
    with Checkpointer(folder, read_only=True) as reader:
        assert reader.steps() == [2]
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(3, state_of(3))
        checkpointer.wait()
        assert os.listdir(place) == ["notes"]
        assert is_of(checkpointer.restore(2).state, 2)  # type: ignore[union-attr]


# Paths

DEEP = """
import os, sys, torch, warnings
from fastio.checkpoint import Checkpointer

base, way = sys.argv[1:]
os.chdir(base)
depth = 25
for _ in range(depth):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
folder = "run" if way == "relative" else "/".join([base, *["d" * 200] * depth, "run"])
for incremental in (False, True):
    with Checkpointer(folder, keep=2, incremental=incremental) as checkpointer:
        first = 10 * incremental
        for step in range(first, first + 3):
            checkpointer.save(step, {"still": torch.ones(9000), "t": torch.full((3,), float(step))})
        checkpointer.wait()
        assert checkpointer.steps() == [first + 1, first + 2], checkpointer.steps()
        checkpointer.verify(first + 2)
        live = {"t": torch.zeros(3)}
        assert checkpointer.restore(into=live).step == first + 2
        assert live["t"].tolist() == [first + 2.0] * 3
        try:
            Checkpointer(folder)
        except RuntimeError as error:
            assert f"process {os.getpid()}" in str(error)
        else:
            raise AssertionError("two writers")
with Checkpointer("run", read_only=True) as reader:
    os.chdir("/")
    assert reader.restore().state["t"].tolist() == [12.0] * 3
try:
    Checkpointer(folder + "/missing" if way != "relative" else "nowhere", read_only=True)
except RuntimeError as error:
    assert "no such folder" in str(error)
else:
    raise AssertionError("there is no such folder")
"""


@pytest.mark.parametrize("way", ["relative", "absolute"])
def test_folders_with_paths_beyond_path_max_work(tmp_path: Path, way: str) -> None:
    done = warm_python.run(DEEP, str(tmp_path), way)
    assert done.returncode == 0, done.stderr


def test_relative_folder_is_resolved_when_the_checkpointer_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with Checkpointer("run") as checkpointer, warnings.catch_warnings():
        monkeypatch.chdir(tmp_path / "other")
        checkpointer.save(1, {"t": torch.ones(3)})
        checkpointer.wait()
    assert os.listdir(tmp_path / "other") == []
    assert folder_of(tmp_path / "run", 1).exists()
