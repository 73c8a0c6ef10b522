"""``fastio.load(keys=...)`` returns parts of dicts, as a whole load does, and reads only the bytes that they need."""

from __future__ import annotations

import io
from argparse import Namespace
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastio
from objects import assorted, same

TOOLS = ("posix", "uring", "numpy", "memory", "auto")


class Box(dict[str, Any]):
    """A dict of another class."""


def checkpoint() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 3))
    moments = {n: {"step": torch.tensor(1.0), "exp_avg": p.detach() * 0.1} for n, p in enumerate(model.parameters())}
    optimizer = {"state": moments, "param_groups": [{"lr": 0.1, "params": list(moments)}]}
    return {"model": model.state_dict(), "optimizer": optimizer, "epoch": 3, "a.b": {"c": 1}, "a": {}}


def loads(path: Any, *keys: str, **arguments: Any) -> tuple[Any, fastio.Transfer]:
    with fastio.record() as transfers:
        found = fastio.load(path, keys=keys, **arguments)
    return found, transfers[-1]


@pytest.mark.parametrize("save", [fastio.save, torch.save])
@pytest.mark.parametrize("tool", TOOLS)
def test_part_of_a_checkpoint(tmp_path: Path, save: Any, tool: str) -> None:
    state, path = checkpoint(), tmp_path / "a.pt"
    save(state, path)
    found, transfer = loads(path, "model", policy=tool)
    assert same(found, {"model": state["model"]})
    assert found["model"]._metadata == state["model"]._metadata
    assert transfer.verified
    assert transfer.nbytes == sum(tensor.nbytes for tensor in state["model"].values())
    names = ("epoch", "model.0.weight", "optimizer.state.1.exp_avg", "a.b.c")
    found, transfer = loads(path, *names, policy=tool)
    average = {"state": {1: {"exp_avg": state["optimizer"]["state"][1]["exp_avg"]}}}
    weight = OrderedDict({"0.weight": state["model"]["0.weight"]})
    assert same(found, {"model": weight, "optimizer": average, "epoch": 3, "a.b": {"c": 1}})
    assert type(found["model"]) is OrderedDict
    assert (transfer.verified, transfer.nbytes) == (True, (5000 + 50) * 4)
    assert loads(path, policy=tool)[0] == {}


def test_no_tool_that_reads_whole_files_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"x": torch.ones(1000), "y": torch.ones(10)}, path)
    for _ in range(40):  # dictionaries try other tools from time to time
        assert loads(path, "x")[1].verified


def test_every_single_tensor_and_what_it_shares(tmp_path: Path) -> None:
    state, path = assorted(), tmp_path / "a.pt"
    fastio.save(state, path)
    whole = fastio.load(path)
    indices, values = state["sparse"].indices(), state["sparse"].values()
    anyway = indices.nbytes + values.nbytes  # torch may compare the indices of sparse tensors as it unpickles them
    for name in state:
        found, transfer = loads(path, name)
        assert same(found, {name: whole[name]}), name
        if isinstance(state[name], torch.Tensor) and state[name].layout == torch.strided:
            assert transfer.nbytes == state[name].untyped_storage().nbytes() + anyway


def test_shared_storages_stay_shared(tmp_path: Path) -> None:
    base, path = torch.arange(1000.0), tmp_path / "a.pt"
    fastio.save({"first": base[:10], "last": base[-10:], "other": torch.zeros(5000)}, path)
    found, transfer = loads(path, "last", "first")
    assert same(found, {"first": base[:10], "last": base[-10:]})
    assert found["first"].untyped_storage().data_ptr() == found["last"].untyped_storage().data_ptr()
    assert transfer.nbytes == 4000


def test_a_dict_that_is_there_twice(tmp_path: Path) -> None:
    inner, path = {"x": torch.ones(3), "y": torch.zeros(2)}, tmp_path / "a.pt"
    fastio.save({"one": inner, "two": inner}, path)
    assert same(loads(path, "one.x", "two")[0], {"one": {"x": inner["x"]}, "two": inner})


def test_objects_of_other_classes(tmp_path: Path) -> None:
    path, sparse = tmp_path / "a.pt", torch.eye(4).to_sparse()
    state = {"args": Namespace(weight=torch.ones(10)), "box": Box(x=torch.ones(7)), "sparse": sparse}
    state |= {"model": {"w": torch.full((1000,), 2.0)}, "array": np.arange(3)}
    state["default"] = defaultdict(list, x=torch.ones(2))
    fastio.save(state, path)
    found, transfer = loads(path, "model", weights_only=False)
    assert same(found, {"model": state["model"]})
    assert (transfer.nbytes, transfer.verified) == (4000 + sparse.indices().nbytes + sparse.values().nbytes, True)
    found, transfer = loads(path, "args", "sparse", "array", weights_only=False)
    assert torch.equal(found["args"].weight, torch.ones(10))
    assert torch.equal(found["sparse"].to_dense(), torch.eye(4))
    assert found["array"].tolist() == [0, 1, 2]
    found, _ = loads(path, "box.x", "default.x", weights_only=False)
    assert same(dict(found["box"]), {"x": torch.ones(7)})
    assert type(found["box"]) is Box
    assert same(found["default"]["x"], torch.ones(2))
    assert found["default"]["y"] == []
    with pytest.raises(Exception, match="weights_only"):
        fastio.load(path, keys=["model"])


@pytest.mark.parametrize("save", [fastio.save, torch.save])
def test_damage_is_found_in_what_is_read_alone(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.pt"
    save({"good": torch.ones(1000), "bad": torch.full((1000,), 2.0)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((1000,), 2.0).numpy().tobytes()) + 17] ^= 1
    path.write_bytes(data)
    for tool in TOOLS:
        assert same(fastio.load(path, keys=["good"], policy=tool), {"good": torch.ones(1000)})
        with pytest.raises(fastio.CorruptFileError, match="data/1"):
            fastio.load(path, keys=["bad"], policy=tool)
    assert (fastio.load(path, keys=["bad"], verify=False)["bad"] != 2).sum() == 1


def test_safetensors(tmp_path: Path) -> None:
    path, state = tmp_path / "a.safetensors", {f"layer.{n}": torch.full((1000,), float(n)) for n in range(5)}
    fastio.save(state, path)
    found, transfer = loads(path, "layer.3", "layer.1")
    assert same(found, {"layer.1": state["layer.1"], "layer.3": state["layer.3"]})
    assert transfer.nbytes == 8000
    with open(path, "rb") as file:
        assert same(fastio.load(file, keys=["layer.4"]), {"layer.4": state["layer.4"]})
    with pytest.raises(fastio.TensorMissingError, match=r"a\.safetensors: no key 'layer.9'.*alike: 'layer\.\d'"):
        fastio.load(path, keys=["layer.9"])
    with pytest.raises(fastio.TensorMissingError, match="no key 'layer'"):
        fastio.load(path, keys=["layer"])


def test_what_torch_loads_itself(tmp_path: Path) -> None:
    state, path, legacy = checkpoint(), tmp_path / "a.pt", tmp_path / "legacy.pt"
    fastio.save(state, path)
    torch.save(state, legacy, _use_new_zipfile_serialization=False)
    expected = {"model": {"0.bias": state["model"]["0.bias"]}}
    stream = io.BytesIO(path.read_bytes())
    for f, arguments in ((legacy, {}), (path, {"policy": "torch"}), (stream, {}), (path, {"mmap": True})):
        found, transfer = loads(f, "model.0.bias", **arguments)
        assert same(found, expected)
        assert any("the rest was dropped" in note for note in transfer.fallbacks) == ("mmap" not in arguments)
        if f is not stream:
            with pytest.raises(fastio.TensorMissingError, match="no key"):
                fastio.load(f, keys=["model.0.bia"], **arguments)


def test_errors(tmp_path: Path) -> None:
    path, single, array = tmp_path / "a.pt", tmp_path / "b.pt", tmp_path / "c.npy"
    fastio.save(checkpoint(), path)
    fastio.save(torch.ones(3), single)
    fastio.save(torch.ones(3), array)
    for name, alike in (("modle", "'model'"), ("model.0.wieght", "'model.0.weight'"), ("model.0.weight.x", "")):
        with fastio.record() as transfers, pytest.raises(fastio.TensorMissingError, match=rf"a\.pt: .*{name}.*{alike}"):
            fastio.load(path, keys=["epoch", name])
        assert not transfers
    with pytest.raises(KeyError, match="begins with 'model', 'optimizer'"):
        fastio.load(path, keys=["zzzzzzz"])
    with pytest.raises(fastio.FastIOError, match="holds a Tensor; leave keys out"):
        fastio.load(single, keys=["x"])
    with pytest.raises(fastio.FastIOError, match=r"\.npy holds one"):
        fastio.load(array, keys=["x"])
    with pytest.raises(TypeError, match=r"keys=\['model'\]"):
        fastio.load(path, keys="model")
    with pytest.raises(TypeError, match="keys=5: expected a list of names"):
        fastio.load(path, keys=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got int"):
        fastio.load(path, keys=[1])  # type: ignore[list-item]


def test_a_missing_name_reads_no_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    fastio.save({"model": {"x": torch.ones(1000)}}, path)
    data = bytearray(path.read_bytes())
    data[data.index(torch.ones(1000).numpy().tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(fastio.TensorMissingError):  # not CorruptFileError
        fastio.load(path, keys=["model.y"])
