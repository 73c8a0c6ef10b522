"""Plans of saves and loads: what they say, and that making one moves no payload, writes nothing and changes nothing."""

from __future__ import annotations

import copy
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.engine.load_plan import detected, plan_load
from fastio.engine.plan import (
    FileLoad,
    FileSave,
    InPlaceSave,
    LoadRequest,
    MappedLoad,
    SaveRequest,
    TorchLoad,
    TorchSave,
)
from fastio.engine.save_plan import plan_save
from fastio.files.open_file import opened
from fastio.formats.detect import PT, SAFETENSORS

MIB = 1 << 20


def request(path: Path, **others: Any) -> LoadRequest:
    return LoadRequest(str(path), None, True, None, "auto", True, {})._replace(**others)


def plan(path: Path, **others: Any) -> Any:
    with opened(str(path)) as (fd, size):
        return plan_load(request(path, **others), fd, size, detected(str(path), fd, size))


def state(nbytes: int = 4096) -> dict[str, torch.Tensor]:
    return {"weight": torch.arange(nbytes // 4, dtype=torch.int32), "bias": torch.ones(3)}


def read_nbytes() -> int:
    """The bytes that this process has read by system calls."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.npy"])
def test_planning_a_load_reads_headers_alone(tmp_path: Path, name: str) -> None:
    path, tensors = tmp_path / name, state(64 * MIB)
    fastio.save(tensors["weight"] if name.endswith("npy") else tensors, path)
    plan(path)  # whatever is imported on first use
    before = read_nbytes()
    found = plan(path)
    assert read_nbytes() - before < MIB
    assert isinstance(found, FileLoad)
    assert found.transfer.nbytes == found.source.nbytes >= 64 * MIB
    assert found.transfer.tools
    assert not found.transfer.fixed
    assert found.verified == (not name.endswith("npy"))


def test_planning_a_save_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    found = plan_save(SaveRequest(state(), str(path), PT, "auto", True, {}))
    assert isinstance(found, FileSave)
    assert os.listdir(tmp_path) == []
    assert found.layout.size > 4096
    assert found.transfer.durable


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"_use_new_zipfile_serialization": False}, "legacy format"),
        ({"_use_new_zipfile_serialization": True, "pickle_module": None}, ""),
        ({"pickle_module": type("own", (), {"__name__": "own", "dumps": pickle.dumps})}, "pickle module"),
    ],
)
def test_a_plan_changes_no_request(tmp_path: Path, arguments: dict[str, Any], why: str) -> None:
    given = dict(arguments)
    found = plan_save(SaveRequest(state(), str(tmp_path / "a.pt"), PT, "auto", True, given))
    assert given == arguments
    assert why in found.why if isinstance(found, TorchSave) else not why
    path = tmp_path / "b.pt"
    fastio.save(state(), path)
    loading = {"pickle_module": None}
    assert isinstance(plan(path, arguments=loading), FileLoad)
    assert loading == {"pickle_module": None}


def test_plans_say_who_reads_and_why(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(state(), path, _use_new_zipfile_serialization=False)
    found = plan(path)
    assert isinstance(found, TorchLoad)
    assert "legacy format" in found.why
    fastio.save(state(), path)
    assert isinstance(plan(path, mmap=True), MappedLoad)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            new.writestr(item.filename, old.read(item))
    found = plan(tmp_path / "b.pt")
    assert isinstance(found, TorchLoad)
    assert found.why
    assert fastio.explain(tmp_path / "b.pt").reason == found.why
    assert isinstance(plan_save(SaveRequest(state(), "/dev/null", PT, "auto", True, {})), InPlaceSave)


def test_a_plan_is_carried_out_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fastio.save(state(), path)
    found = plan(path, policy="posix")
    assert found.transfer.tools == ("posix",)
    assert found.transfer.fixed == "it was asked for"
    with fastio.record() as transfers:
        loaded = fastio.load(path, policy="posix")
    (transfer,) = transfers
    assert (transfer.tool, transfer.reason, transfer.nbytes) == ("posix", found.transfer.fixed, found.transfer.nbytes)
    assert torch.equal(loaded["weight"], state()["weight"])


def test_explaining_and_loading_change_no_arguments(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    fastio.save(state(), path)
    arguments: dict[str, Any] = {"pickle_module": None, "encoding": "utf-8"}
    before = copy.copy(arguments)
    assert fastio.explain(path) == fastio.explain(path)
    fastio.load(path, **arguments)
    assert arguments == before


def test_file_objects_are_loaded_as_before(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    fastio.save(state(), buffer, format=SAFETENSORS)
    buffer.seek(0)
    assert torch.equal(fastio.load(buffer)["weight"], state()["weight"])
