"""Models are read to a device, and into a module on it, with the values of the files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fastio
from accelerators import DEVICE


@pytest.mark.gpu
def test_tensors_and_slices_are_read_to_a_device(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(64, 300), "b": torch.arange(7), "empty": torch.empty(0, 2)}
    fastio.save_file(tensors, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a", device=DEVICE) as file:
        found = dict(file.tensors())
        rows, columns = file.get_slice("a")[3:9], file.get_slice("a")[:, 5:70]
    assert {tensor.device.type for tensor in (*found.values(), rows, columns)} == {DEVICE}
    assert all(torch.equal(found[name].cpu(), tensors[name]) for name in tensors)
    assert torch.equal(rows.cpu(), tensors["a"][3:9])
    assert torch.equal(columns.cpu(), tensors["a"][:, 5:70])


@pytest.mark.gpu
@pytest.mark.parametrize("atomic", [True, False])
def test_a_module_on_a_device_is_loaded(tmp_path: Path, atomic: bool) -> None:
    expected = nn.Linear(30, 20)
    fastio.save_model(expected.to(DEVICE), tmp_path)
    model = nn.Linear(30, 20).to(DEVICE)
    place = model.weight.data_ptr()
    assert fastio.load_model(model, tmp_path, atomic=atomic) == ([], [])
    assert torch.equal(model.weight.cpu(), expected.weight.cpu())
    assert model.weight.data_ptr() == place
    with torch.device("meta"):
        empty = nn.Linear(30, 20)
    fastio.load_model(empty, tmp_path, device=DEVICE)
    assert empty.weight.device.type == DEVICE
    assert torch.equal(empty.bias.cpu(), expected.bias.cpu())


def test_a_map_of_devices_has_only_names_of_the_module(tmp_path: Path) -> None:
    fastio.save_model(nn.Sequential(nn.Linear(3, 3)), tmp_path / "a.safetensors")
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3))
    for name, cure in (("0.weigth", "alike: '0.weight'"), ("lm_head", r"model\.named_modules\(\) lists")):
        with pytest.raises(
            ValueError, match=f"device has the key '{name}', which is no name in this Sequential; {cure}"
        ):
            fastio.load_model(model, tmp_path / "a.safetensors", device={"": "cpu", name: "cuda:7"})
    assert model[0].weight.is_meta
    assert fastio.load_model(model, tmp_path / "a.safetensors", device={"0.bias": "cpu", "0": "cpu"}) == ([], [])


@pytest.mark.gpu
def test_a_map_of_devices_divides_a_module(tmp_path: Path) -> None:
    expected = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 8))
    fastio.save_model(expected, tmp_path / "a.safetensors")
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.Linear(8, 8))
    model[2].to_empty(device="cpu")
    places = {"": DEVICE, "1": "cpu", "1.1": torch.device(DEVICE), "1.1.bias": "cpu", "2": DEVICE}
    with pytest.warns(RuntimeWarning, match=f"filled there, not moved to {DEVICE}: '2.weight', '2.bias'"):
        assert fastio.load_model(model, tmp_path / "a.safetensors", device=places) == ([], [])
    assert {name: tensor.device.type for name, tensor in model.state_dict().items()} == {
        "0.weight": DEVICE, "0.bias": DEVICE, "1.0.weight": "cpu", "1.0.bias": "cpu", "1.1.weight": DEVICE,
        "1.1.bias": "cpu", "2.weight": "cpu", "2.bias": "cpu",
    }  # fmt: skip
    assert all(torch.equal(tensor.cpu(), expected.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.gpu
@pytest.mark.parametrize("atomic", [True, False])
def test_a_module_with_memory_is_not_moved_and_a_warning_says_so(tmp_path: Path, atomic: bool) -> None:
    expected = nn.Linear(8, 8)
    fastio.save_model(expected, tmp_path)
    for here, there in (("cpu", DEVICE), (DEVICE, "cpu")):
        model = nn.Linear(8, 8).to(here)
        with pytest.warns(RuntimeWarning) as caught:
            fastio.load_model(model, tmp_path, device=there, atomic=atomic)
        (said,) = (str(one.message) for one in caught)
        assert said.startswith(f"load_model: these tensors had memory on {model.weight.device} and were filled there")
        assert f"not moved to {there}: 'weight', 'bias'; call model.to('{there}')" in said
        assert caught[0].filename == __file__
        assert model.weight.device.type == here
        assert torch.equal(model.weight.cpu(), expected.weight)
        fastio.load_model(model, tmp_path, device=here, atomic=atomic)


def test_a_device_that_is_not_here_is_told_of_where_nothing_lies_on_it(tmp_path: Path) -> None:
    expected = nn.Linear(8, 8)
    fastio.save_model(expected, tmp_path)
    model = nn.Linear(8, 8)
    with pytest.warns(RuntimeWarning, match=r"on cpu and were filled there, not moved to mps:3: 'bias'; call"):
        fastio.load_model(model, tmp_path, device={"bias": "mps:3", "weight": "cpu"})
    assert torch.equal(model.bias, expected.bias)


@pytest.mark.gpu
def test_pt_files_and_state_dicts_on_a_device(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.pt", {"a": torch.randn(64, 300), "b": torch.arange(7), "turned": torch.ones(2, 3).t()}
    fastio.save(tensors, path)
    with fastio.safe_open(path, device=DEVICE) as file:
        found = dict(file.tensors())
    assert {tensor.device.type for tensor in found.values()} == {DEVICE}
    assert all(torch.equal(found[name].cpu(), tensors[name]) for name in tensors)
    part = fastio.load(path, DEVICE, keys=["b"])
    assert (part["b"].device.type, part["b"].tolist()) == (DEVICE, list(range(7)))
    for atomic in (True, False):
        state = {name: torch.zeros_like(tensor, device=DEVICE) for name, tensor in tensors.items()}
        fastio.load_into(state, path, atomic=atomic)
        assert all(torch.equal(state[name].cpu(), tensors[name]) for name in tensors)


@pytest.mark.gpu
def test_tensors_of_a_device_have_checksums_and_are_compared(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", {"a": torch.randn(64, 300), "b": torch.arange(700), "c": torch.ones(0)}
    on_device = {name: tensor.to(DEVICE) for name, tensor in tensors.items()} | {"t": tensors["a"].to(DEVICE).t()}
    assert fastio.save(on_device, path, hashes=True).verified
    assert fastio.verify(path).hashed
    with fastio.record() as transfers:
        loaded = fastio.load_file(path, device=DEVICE)
        with fastio.safe_open(path, device=DEVICE) as file:
            file.get_tensor("a")
    assert all(torch.equal(loaded[name].cpu(), tensors[name]) for name in tensors)
    assert [one.verified for one in transfers] == [True, True]
    content = bytearray(path.read_bytes())
    content[content.index(tensors["b"].numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    with fastio.safe_open(path, device=DEVICE) as file:
        assert torch.equal(file.get_tensor("a").cpu(), tensors["a"])
        with pytest.raises(fastio.ChecksumError, match="'b'"):
            file.get_tensor("b")
    with pytest.raises(fastio.ChecksumError, match="'b'"):
        fastio.load(path, DEVICE)


@pytest.mark.gpu
def test_tensors_without_elements_are_on_the_device_too(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3000), "empty": torch.empty(0, 2), "last": torch.empty(0)}
    for name in ("a.safetensors", "a.pt"):
        for policy in ("auto", "pinned"):
            result = fastio.save(
                {key: value.to(DEVICE) for key, value in tensors.items()}, tmp_path / name, policy=policy
            )
            assert policy in ("auto", result.tool)
            found = fastio.load(tmp_path / name, DEVICE, policy=policy)
            assert {tensor.device.type for tensor in found.values()} == {DEVICE}
            assert all(torch.equal(found[key].cpu(), tensors[key]) for key in tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["uring", "posix"])
def test_a_tool_that_cannot_fill_a_device_is_refused_before_anything_changes(tmp_path: Path, policy: str) -> None:
    fastio.save_model(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), tmp_path)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].to(DEVICE)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for load in (fastio.load_model, lambda model, *rest, **more: fastio.load_into(model.state_dict(), *rest, **more)):
        with pytest.raises(fastio.ToolUnavailableError) as caught:
            load(model, tmp_path, policy=policy)
        assert "partly" not in str(caught.value)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
