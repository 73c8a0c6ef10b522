"""Objects that safetensors and npy cannot hold are refused before anything is written, by name and with the cure."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fastio
from objects import same

FORMS = ("safetensors", "npy")
GOOD = torch.ones(3)  # created outside any transform


class Pair(torch.Tensor):
    """A wrapper of two tensors, like DTensor and torchao's tensors."""

    @staticmethod
    def __new__(cls, one: torch.Tensor, other: torch.Tensor) -> Pair:
        made: Pair = torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)  # type: ignore[attr-defined]
        return made

    def __init__(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.one, self.other = one, other

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return arguments[0]

    def __repr__(self, **_: Any) -> str:
        return "Pair"


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def freed(tensor: torch.Tensor, nbytes: int) -> torch.Tensor:
    tensor.untyped_storage().resize_(nbytes)
    return tensor


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def transposed(tensor: torch.Tensor, nbytes: int) -> torch.Tensor:
    part = tensor.t()
    freed(tensor, nbytes)
    return part


MADE: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "nested": (lambda: nested(torch.strided), "unbind"),
    "jagged": (lambda: nested(torch.jagged), "unbind"),
    "wrapper": (lambda: Pair(torch.ones(3), torch.ones(3)), "is a Pair, .*save what it holds.*full_tensor"),
    "meta": (lambda: torch.ones(3, device="meta"), "no data"),
    "meta, empty": (lambda: torch.ones(0, device="meta"), "no data"),
    "meta, strided": (lambda: torch.ones(3, 4, device="meta").t(), "no data"),
    "fake": (fake, "no data"),
    "freed": (lambda: freed(torch.ones(100_000), 0), "400,000 bytes.*which has only 0 bytes: .*FSDP"),
    "freed in part": (lambda: freed(torch.ones(100_000), 399_999), "byte 400000 .*only 391 KiB .399,999 bytes"),
    "freed, strided": (lambda: transposed(torch.ones(1000, 100), 4096), "byte 400000 .*only 4 KiB .4,096 bytes"),
}


def refused(tmp_path: Path, form: str, tensor: Any, problem: str) -> None:
    """Check that saves to a path and to a file object raise FormatError and write nothing."""
    obj: Any = tensor if form == "npy" else {"good": GOOD, "layer.bad": tensor}
    name = "the tensor" if form == "npy" else "'layer.bad'"
    stream = io.BytesIO()
    for target in (tmp_path / "it", stream):
        where = "it" if target is not stream else "<file object>"
        with pytest.raises(fastio.FormatError, match=f"{where}: {name} {problem}"):
            fastio.save(obj, target, format=form)
    assert stream.getvalue() == b""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", MADE)
def test_tensors_without_data_of_their_own_are_refused(tmp_path: Path, form: str, kind: str) -> None:
    make, problem = MADE[kind]
    refused(tmp_path, form, make(), f".*{problem}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad])
def test_tensors_inside_a_torch_func_transform_are_refused(tmp_path: Path, form: str, transform: Any) -> None:
    def inside(tensor: torch.Tensor) -> torch.Tensor:
        refused(tmp_path, form, tensor, r".*torch\.func")
        return tensor.sum()

    transform(inside)(torch.ones(5) if transform is torch.func.grad else torch.ones(2, 5))


@pytest.mark.parametrize("form", FORMS)
def test_storages_that_just_suffice_are_saved(tmp_path: Path, form: str) -> None:
    whole = torch.arange(12.0)
    for tensor in (whole[3:], whole.reshape(3, 4).t(), whole.reshape(3, 4)[1:, 2:], whole[:0]):
        fastio.save(tensor if form == "npy" else {"x": tensor}, tmp_path / "it", format=form)
        loaded = fastio.load(tmp_path / "it")
        assert torch.equal(loaded if form == "npy" else loaded["x"], tensor)


def test_pt_with_a_freed_storage_behaves_as_torchs(tmp_path: Path) -> None:
    tensor = freed(torch.ones(100_000), 0)
    errors = []
    for save in (torch.save, fastio.save):
        save(tensor, tmp_path / "it.pt")
        with pytest.raises(RuntimeError) as raised:
            torch.load(tmp_path / "it.pt")
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("form", FORMS)
def test_save_and_load_inside_fake_tensor_mode_are_refused(tmp_path: Path, form: str) -> None:
    obj: Any = torch.ones(3) if form == "npy" else {"x": torch.ones(3)}
    array = np.ones(3)
    path = tmp_path / "it"
    fastio.save(obj, path, format=form)
    before = path.read_bytes()
    with FakeTensorMode():
        inside: Any = torch.ones(3) if form == "npy" else {"x": torch.ones(3)}
        for thing in (obj, inside, array):
            for target in (path, io.BytesIO()):
                with pytest.raises(fastio.FastIOError, match="FakeTensorMode is on"):
                    fastio.save(thing, target, format=form)
        for source in (path, io.BytesIO(before)):
            with pytest.raises(fastio.FastIOError, match="FakeTensorMode is on") as refusal:
                fastio.load(source)
            assert not isinstance(refusal.value, fastio.CorruptFileError)
    assert path.read_bytes() == before
    assert same(fastio.load(path), obj)


@pytest.mark.parametrize("text", ["\ud800", "weight\udcff", "\udc00\ud800"])
def test_safetensors_refuses_names_and_metadata_that_are_not_unicode(tmp_path: Path, text: str) -> None:
    tensors = {"x": torch.ones(3)}
    stream = io.BytesIO()
    for target in (tmp_path / "it.safetensors", stream):
        for obj, metadata in ((tensors | {text: torch.ones(1)}, {}), (tensors, {text: "a"}), (tensors, {"a": text})):
            with pytest.raises(fastio.FormatError, match="not Unicode") as refusal:
                fastio.save(obj, target, format="safetensors", metadata=metadata)
            assert repr(text) in str(refusal.value)
    assert stream.getvalue() == b""
    assert list(tmp_path.iterdir()) == []
    fastio.save({"😀": torch.ones(1)}, tmp_path / "it.safetensors", metadata={"ü": "😀"})
    assert fastio.load(tmp_path / "it.safetensors").keys() == {"😀"}


def test_npy_refuses_masked_arrays(tmp_path: Path) -> None:
    array = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    for target in (tmp_path / "it.npy", io.BytesIO()):
        with pytest.raises(fastio.FormatError, match=r"mask.*filled\(\)"):
            fastio.save(array, target, format="npy")
    assert list(tmp_path.iterdir()) == []
    fastio.save(array.filled(), tmp_path / "it.npy")


def test_npy_saves_read_only_arrays_without_a_warning(tmp_path: Path) -> None:
    """torch's warning would be an error here."""
    whole = np.arange(24.0).reshape(4, 6)
    for array in (
        whole,
        whole[::-1],
        whole[:, ::2],
        whole.T,
        np.broadcast_to(whole[0], (3, 6)),
        whole[:0],
        whole[0, 0],
    ):
        array = np.asarray(array)
        array.setflags(write=False)
        for target in (tmp_path / "it.npy", tmp_path / "stream"):
            if target.name == "it.npy":
                fastio.save(array, target)
            else:
                with target.open("wb") as file:
                    fastio.save(array, file, format="npy")
            assert np.array_equal(np.load(target), array)
        assert not array.flags.writeable
