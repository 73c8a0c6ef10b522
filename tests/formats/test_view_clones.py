"""``fastio.save(..., clone=True)`` writes tensors that view part of a storage without the rest of it."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastio

LARGE = 1 << 20  # elements


def saved(obj: Any, path: Path, tool: str | None = None, **arguments: Any) -> Any:
    """Save with ``clone=True``, by ``tool``; check that torch and fastio load the same part; return torch's result."""
    result = fastio.save(obj, path, clone=True, **arguments)
    assert result.tool == (tool or result.tool)
    loaded = torch.load(path, weights_only=False)
    assert torch.equal(torch.load(path, weights_only=False)["part"], fastio.load(path, weights_only=False)["part"])
    return loaded


@pytest.mark.parametrize("untouched", [False, True], ids=["", "storages noted, not touched"])
@pytest.mark.parametrize("policy", ["uring", "posix", "torch"])
def test_clone_writes_only_the_viewed_part(
    tmp_path: Path, policy: str, untouched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: untouched)  # True makes the save use skip_data()
    path = tmp_path / "it.pt"
    large = torch.arange(float(LARGE))
    assert fastio.save({"part": large[5:1000]}, path, policy=policy).nbytes >= large.nbytes
    assert path.stat().st_size > large.nbytes
    loaded = saved({"part": large[5:1000]}, path, policy, policy=policy)
    assert path.stat().st_size < 64 << 10
    assert torch.equal(loaded["part"], large[5:1000])
    assert loaded["part"].untyped_storage().nbytes() == 995 * 4
    fastio.verify(path)


@pytest.mark.parametrize(
    "arguments",
    [
        {"_use_new_zipfile_serialization": False},
        {"pickle_module": pickle},
        {"pickle_module": SimpleNamespace(**{**vars(pickle), "Pickler": pickle._Pickler})},
        {"pickle_protocol": 5},
    ],
    ids=["legacy", "pickle", "a module of the caller's own", "protocol"],
)
def test_clone_works_when_torch_pickles(tmp_path: Path, arguments: dict[str, Any]) -> None:
    large = torch.arange(float(LARGE))
    assert torch.equal(saved({"part": large[5:1000]}, tmp_path / "it.pt", **arguments)["part"], large[5:1000])
    assert (tmp_path / "it.pt").stat().st_size < 64 << 10


def test_clone_keeps_the_callers_reducer_override(tmp_path: Path) -> None:
    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            return (str, ("told",)) if obj is told else NotImplemented

    told = object()
    module = SimpleNamespace(**{**vars(pickle), "Pickler": Pickler})
    loaded = saved({"part": torch.arange(LARGE)[:9], "told": told}, tmp_path / "it.pt", pickle_module=module)
    assert loaded["told"] == "told"
    assert loaded["part"].untyped_storage().nbytes() == 72


def test_clone_to_a_file_object_writes_only_the_viewed_part() -> None:
    stream = io.BytesIO()
    fastio.save(torch.arange(LARGE)[5:9], stream, clone=True)
    assert len(stream.getvalue()) < 4096
    stream.seek(0)
    assert fastio.load(stream).tolist() == [5, 6, 7, 8]


def test_tied_views_stay_tied(tmp_path: Path) -> None:
    flat, whole = torch.arange(float(LARGE)), torch.arange(300_000.0)
    obj = {
        "part": flat[:500].view(20, 25),
        "tied": flat[:500].view(20, 25),
        "other": flat[:500],  # the same bytes, but not the same tensor
        "whole": whole,
        "turned": whole.view(3, -1).t(),
    }
    path = tmp_path / "it.pt"
    loaded = saved(obj, path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in obj.items())
    assert loaded["part"].data_ptr() == loaded["tied"].data_ptr()
    assert loaded["part"].data_ptr() != loaded["other"].data_ptr()
    assert loaded["whole"].data_ptr() == loaded["turned"].data_ptr()
    assert path.stat().st_size < whole.nbytes + (64 << 10)


def test_cloned_tensors_keep_their_attributes(tmp_path: Path) -> None:
    flat = torch.arange(float(LARGE))
    obj: dict[str, Any] = {
        "part": flat[:60].view(6, 10)[:, 2:5],  # columns
        "turned": flat[8:68].view(6, 10).t(),
        "parameter": torch.nn.Parameter(flat[3:9]),
        "grad": flat[5:9].requires_grad_(),
        "noted": flat[7:8],
        "empty": flat[9:9],
        "scalar": flat[11],
        "wide": flat[:3].expand(LARGE, 3),  # more elements than bytes: a clone would be larger
        "half": flat.to(torch.bfloat16)[77:99],
        "conj": torch.view_as_complex(flat.view(-1, 2))[3:8].conj(),
        "sparse": torch.sparse_coo_tensor(torch.arange(LARGE)[None, 4:6], flat[4:6], (LARGE,), check_invariants=True),
        "nested": [({"deep": flat[100:200]}, "text", 3)],
        "model": torch.nn.Linear(3, 2),
    }
    obj["noted"].note = "mine"
    path = tmp_path / "it.pt"
    loaded = saved(obj, path)
    assert path.stat().st_size < flat.nbytes + (256 << 10)  # "wide" keeps its whole storage
    for name, tensor in obj.items():
        if isinstance(tensor, torch.Tensor) and name != "sparse":
            got = loaded[name]
            assert (type(got), got.dtype, got.shape) == (type(tensor), tensor.dtype, tensor.shape)
            assert got.requires_grad == tensor.requires_grad
            assert torch.equal(got, tensor)
    assert loaded["turned"].stride() == obj["turned"].stride()
    assert torch.equal(loaded["sparse"].coalesce().values(), obj["sparse"].coalesce().values())
    assert torch.equal(loaded["nested"][0][0]["deep"], flat[100:200])
    assert loaded["noted"].note == "mine"
    assert torch.equal(loaded["model"].weight, obj["model"].weight)


def test_parameters_on_one_flat_tensor_are_written_alone(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8)
    flat = torch.zeros(LARGE)
    for index, parameter in enumerate(model.parameters()):
        parameter.data = flat[100 * index :][: parameter.numel()].view_as(parameter)
    fastio.save(model.state_dict(), tmp_path / "it.pt", clone=True)
    assert (tmp_path / "it.pt").stat().st_size < 64 << 10
    assert fastio.load(tmp_path / "it.pt").keys() == model.state_dict().keys()


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_clone_does_not_change_files_of_other_formats(tmp_path: Path, form: str) -> None:
    part: Any = torch.arange(LARGE)[5:1000]
    files = []
    for clone in (False, True):
        fastio.save(part if form == "npy" else {"part": part}, tmp_path / f"it.{form}", clone=clone)
        files.append((tmp_path / f"it.{form}").read_bytes())
    assert files[0] == files[1]
    assert len(files[0]) < 64 << 10
