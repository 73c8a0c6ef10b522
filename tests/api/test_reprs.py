"""The repr of objects: what they are, their main settings and their state, on one line without an address."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastio
from fastio.checkpoint import RandomState
from fastio.dicts import RDic, WDic, WRDic
from fastio.distributed import Reader, Writer
from fastio.offload import BlockStore, ToolStore, encode


def said(thing: object, *expected: str) -> None:
    text = repr(thing)
    assert "\n" not in text
    assert len(text) < 500
    assert not re.search(r"0x[0-9a-f]{6}", text), text
    for part in expected:
        assert part in text, text


def test_offload_tells_store_settings_and_state(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    offload = fastio.Offload(model, store=tmp_path, budget="1MiB", policy="optimal", codec="none")
    said(offload, "Offload", str(tmp_path), "policy optimal", "budget 1 MiB", "codec none", "forward passes: 0, open")
    with offload:
        model(torch.randn(64, 64)).sum().backward()
    said(offload, "forward passes: 1, open")
    said(offload.report(), "offload Report", "policy optimal", "saved tensors: ")
    offload.close()
    said(offload, "closed")


def test_hybrid_tells_settings_and_state() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    hybrid = fastio.Hybrid(model, torch.optim.SGD(model.parameters()), gpu_budget="1GiB", device="cpu")
    said(hybrid, "Hybrid of Sequential on cpu", "layers: 2", "GPU budget 1 GiB", "planner memferry", "not planned yet")
    model(torch.randn(2, 4)).sum().backward()
    hybrid.step()
    said(hybrid, "steps: 1, planned")
    said(hybrid.report(), "hybrid Report: steps: 1, layers: 2, copied: 0, planned")
    hybrid.close()
    said(hybrid, "closed")


def test_checkpointer_tells_settings_and_state(tmp_path: Path) -> None:
    with fastio.Checkpointer(tmp_path / "run", keep=2, keep_every=10, incremental=True) as checkpointer:
        said(checkpointer, "Checkpointer", str(tmp_path / "run"), "steps kept: 2, multiples of 10 stay")
        said(checkpointer, "asynchronous, incremental, policy 'auto', open")
    said(checkpointer, "closed")
    said(fastio.Checkpointer(tmp_path / "run", read_only=True), "read-only")


def test_dictionaries_tell_what_they_know() -> None:
    said(WDic(), "<fastio WDic: contexts: 0, learning>")
    said(WRDic(mode="w", learn=False), "WRDic: mode w", "<fastio RDic: contexts: 0, frozen>")
    said(fastio.dicts.resolve(RDic(), "load", ["posix"]), "RDic")


def test_stores_tell_places_and_state(tmp_path: Path) -> None:
    stores: list[Callable[[], Any]] = [lambda: BlockStore(tmp_path, capacity=1 << 20), lambda: ToolStore(tmp_path)]
    for make in stores:
        store = make()
        said(store, type(store).__name__, str(tmp_path))
        store.close()
        said(store, "closed")


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_readers_tell_files_and_state(tmp_path: Path, framework: Any) -> None:
    path = tmp_path / "a.safetensors"
    fastio.save_file({"weight": torch.ones(2, 3)}, path)
    with fastio.safe_open(path, framework) as reader:
        said(reader, "Reader", "tensors: 1", str(path), "to cpu", "policy 'auto'")
        said(reader.get_slice("weight"), "'weight'", "F32 [2, 3]", str(path))
    said(reader, "closed")
    said(Writer(tmp_path / "step", durable=False), "Writer", "step", "not durable")
    said(Reader(tmp_path / "step", policy="posix"), "Reader", "step", "policy 'posix'")


def test_results_and_others(tmp_path: Path) -> None:
    said(fastio.save({"a": torch.ones(2)}, tmp_path / "a.pt"), "SaveResult(op='save'", "tool=")
    said(encode(torch.zeros(1000), "csr"), "Encoded(codec='csr', shape=(1000,)")
    said(RandomState(), "RandomState")
    with fastio.Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.save(6, {"weight": torch.zeros(1000)}, {"note": "x"})
        said(checkpointer.restore(), "Restored(step=6, state=a dict, metadata={'note': 'x'})")
    patch = fastio.patch_torch()
    said(patch, "in force")
    patch.undo()
    said(patch, "undone")
