"""load_into fills the tensors of a state dict where they are, from any file of weights, wholly or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio import dicts
from objects import DTYPES, same, same_bits, tensor_of

BOTH = pytest.mark.parametrize("atomic", [True, False])
HELD = [dtype for dtype in DTYPES if dtype not in (torch.complex128, torch.complex32)]  # by safetensors


def state(seed: int) -> dict[str, torch.Tensor]:
    found = {f"{dtype}": tensor_of(dtype, 4, 6, seed=seed) for dtype in HELD}
    return found | {"empty": torch.empty(0, 3), "large": torch.full((600, 512), float(seed))}


@BOTH
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_fills_the_tensors_that_are_there(tmp_path: Path, suffix: str, atomic: bool) -> None:
    path, source, target = tmp_path / f"a.{suffix}", state(1), state(2)
    fastio.save(source, path)
    kept = dict(target)
    versions = {name: tensor._version for name, tensor in target.items()}
    assert fastio.load_into(target, path, atomic=atomic) == ([], [])
    assert all(target[name] is kept[name] for name in target)
    assert same(target, source)
    assert all(tensor._version > versions[name] for name, tensor in target.items() if tensor.numel())


@BOTH
def test_a_checkpoint_of_a_module_and_an_optimizer(tmp_path: Path, atomic: bool) -> None:
    path, source, target = tmp_path / "a.pt", torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    moments = [{"step": torch.tensor(5.0), "exp_avg": torch.ones(4, 3)}, {"exp_avg": torch.ones(4)}]
    fastio.save({"model": source.state_dict(), "moments": moments, "epoch": 3}, path)
    zeros = [{name: torch.zeros_like(tensor) for name, tensor in one.items()} for one in moments]
    checkpoint = {"model": target.state_dict(keep_vars=True), "moments": zeros, "epoch": 1}
    fastio.load_into(checkpoint, path, atomic=atomic)
    assert same(dict(target.state_dict()), dict(source.state_dict()))
    assert same(zeros, moments)
    assert checkpoint["epoch"] == 1
    assert target.weight.requires_grad
    missing, unexpected = fastio.load_into({"model": target.state_dict(), "x": torch.ones(1)}, path, strict=False)
    assert missing == ["x"]
    assert unexpected == ["moments.0.exp_avg", "moments.0.step", "moments.1.exp_avg"]


@BOTH
def test_views_and_odd_memory(tmp_path: Path, atomic: bool) -> None:
    path, base = tmp_path / "a.pt", torch.zeros(100)
    source = {"turned": torch.arange(12.0).view(3, 4).t(), "row": torch.arange(5.0), "tied": torch.ones(7), "rest": 1}
    source |= {"again": source["tied"], "inner": source["tied"][2:5], "conj": torch.tensor([1 + 2j])}
    fastio.save(source, path)
    with torch.inference_mode():
        inference = torch.zeros(7)
    target = {"turned": torch.zeros(4, 3), "row": base[10:15], "tied": inference, "again": torch.zeros(7)}
    target |= {"inner": torch.zeros(3, 2)[:, 0], "conj": torch.zeros(1, dtype=torch.complex64).conj()}
    fastio.load_into(target, path, atomic=atomic)
    assert all(torch.equal(target[name], source[name]) for name in target)
    assert base.sum() == 10


def test_tied_tensors_need_one_name(tmp_path: Path) -> None:
    path, tensor = tmp_path / "a.safetensors", torch.zeros(5)
    fastio.save_file({"one": torch.ones(5)}, path)
    assert fastio.load_into({"one": tensor, "two": tensor}, path) == ([], [])
    assert tensor.sum() == 5


@BOTH
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_targets_that_share_a_part_of_their_memory(tmp_path: Path, suffix: str, atomic: bool) -> None:
    path, memory = tmp_path / f"a.{suffix}", torch.zeros(30)
    fastio.save({"a": torch.ones(20), "b": torch.full((20,), 2.0)}, path)
    with pytest.raises(fastio.ModelMismatchError, match="'a' and 'b' share a part of their memory"):
        fastio.load_into({"a": memory[:20], "b": memory[10:]}, path, atomic=atomic)
    assert not memory.any()
    pairs = torch.zeros(20, 2)
    fastio.load_into({"a": pairs[:, 0], "b": pairs[:, 1]}, path, atomic=atomic)  # they have no byte in common
    assert pairs.sum(0).tolist() == [20, 40]
    if suffix == "pt":
        base = torch.arange(30.0)
        fastio.save({"a": base[:20], "b": base[10:]}, path)
        fastio.load_into({"a": memory[:20], "b": memory[10:]}, path, atomic=atomic)
        assert torch.equal(memory, base)


@BOTH
def test_what_does_not_fit_changes_nothing(tmp_path: Path, atomic: bool) -> None:
    path = tmp_path / "a.pt"
    fastio.save({"x": torch.ones(3), "y": torch.ones(2, 2)}, path)
    good = torch.zeros(3)
    bad: list[tuple[Any, str, str]] = [
        (torch.zeros(2, 3), "ModelMismatchError", r"'y' in .*a\.pt has shape \[2, 2\], the state's has \[2, 3\]"),
        (torch.zeros(2, 2).half(), "ModelMismatchError", r"dtype torch.float32, the state's is torch.float16: give it"),
        (torch.zeros(2, 2, device="meta"), "FormatError", "the state: 'y' has a shape, but no data"),
        (torch.zeros(1, 2).expand(2, 2), "FormatError", "'y' is expanded"),
        ({"z": torch.zeros(2, 2)}, "ModelMismatchError", r"missing from the files: 'y\.z'\n.*not in the state: 'y'"),
    ]
    for tensor, error, message in bad:
        with pytest.raises(getattr(fastio, error), match=message):
            fastio.load_into({"x": good, "y": tensor}, path, atomic=atomic)
    with pytest.raises(TypeError, match="got Linear"):
        fastio.load_into(torch.nn.Linear(2, 2), path)
    with pytest.raises(fastio.FormatError, match=r"two tensors have the name 'a\.b'"):
        fastio.load_into({"a.b": good, "a": {"b": torch.zeros(3)}}, path)
    assert good.sum() == 0


@BOTH
def test_damage(tmp_path: Path, atomic: bool) -> None:
    path, source, target = tmp_path / "a.pt", {"x": torch.ones(900), "y": torch.full((900,), 2.0)}, torch.zeros(900)
    fastio.save(source, path)
    data = bytearray(path.read_bytes())
    data[data.index(source["y"].numpy().tobytes()) + 5] ^= 4
    path.write_bytes(data)
    with pytest.raises(fastio.CorruptFileError, match=r"a\.pt: tensor 'y': its 3.52 KiB .3,600 bytes..*CRC-32"):
        fastio.load_into({"x": target, "y": torch.zeros(900)}, path, atomic=atomic)
    assert same_bits(target, torch.zeros(900)) == atomic


def test_dictionaries_know_loads_into_used_memory_apart(tmp_path: Path) -> None:
    """New memory costs as much as a copy: what is learned with it says nothing about memory that is there."""
    tensors = {"a": torch.randn(300, 100)}
    fastio.save_file(tensors, tmp_path / "a")
    for atomic, expected in ((False, "in place"), (True, "safetensors")):
        dictionary, state = dicts.RDic(), {"a": torch.zeros(300, 100)}
        fastio.load_into(state, tmp_path / "a", atomic=atomic, policy=dictionary)
        assert torch.equal(state["a"], tensors["a"])
        assert {context.format for context in dictionary.tuners} == {expected}


def test_modules_in_place_of_their_tensors_warn_that_nothing_was_loaded(tmp_path: Path) -> None:
    path, layer = tmp_path / "a.safetensors", torch.nn.Linear(2, 2)
    fastio.save_file({"layers.1.weight": torch.ones(2, 2), "layers.1.bias": torch.ones(2)}, path)
    with pytest.warns(RuntimeWarning, match=r"nothing was loaded: the state has no tensors; .* state_dict\(\)"):
        fastio.load_into({"layers": {"1": layer}}, path, strict=False)


def test_the_cure_for_a_part_of_a_model_loads_it(tmp_path: Path) -> None:
    path, module = tmp_path / "a.safetensors", torch.nn.Linear(2, 2)
    fastio.save_file({"layers.1.weight": torch.ones(2, 2), "layers.1.bias": torch.ones(2), "x": torch.ones(1)}, path)
    with pytest.raises(fastio.ModelMismatchError) as caught:
        fastio.load_model(module, path)
    call = str(caught.value).partition("load them by ")[2].partition(", ...,")
    eval(f"{call[0]}, path, {call[2].partition(')')[0]})", {"fastio": fastio, "module": module, "path": path})
    assert module.weight.sum() == 4
    assert module.bias.sum() == 2
