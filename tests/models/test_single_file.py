"""load_file and save_file do what ``safetensors.torch`` does, and refuse what it refuses."""

from __future__ import annotations

import gc
import inspect
import io
from pathlib import Path

import pytest
import safetensors.torch
import torch

import fastio
from objects import DTYPES, same_bits, tensor_of


def state() -> dict[str, torch.Tensor]:
    tensors = {
        str(dtype): tensor_of(dtype, 4, 6) for dtype in DTYPES if dtype not in (torch.complex128, torch.complex32)
    }
    return tensors | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 7), "large": torch.randn(600, 512)}


def test_signatures_begin_as_the_librarys() -> None:
    for name in ("load_file", "save_file"):
        found = inspect.signature(getattr(fastio, name)).parameters.values()
        ours = [parameter.name for parameter in found if parameter.kind != inspect.Parameter.KEYWORD_ONLY]
        theirs = list(inspect.signature(getattr(safetensors.torch, name)).parameters)
        assert ours == theirs[: len(ours)]


def test_each_side_loads_what_the_other_saved(tmp_path: Path) -> None:
    tensors = state()
    fastio.save_file(tensors, tmp_path / "ours", metadata={"format": "pt"})
    library = {name: t for name, t in tensors.items() if t.dtype not in (torch.complex64,) and t.numel()}
    safetensors.torch.save_file(library, tmp_path / "theirs.safetensors")
    with safetensors.safe_open(tmp_path / "ours", "pt") as file:
        assert file.metadata().keys() == {"format", "fastio.checksums"}
    for loaded in (safetensors.torch.load_file(tmp_path / "ours"), fastio.load_file(tmp_path / "ours")):
        assert loaded.keys() == tensors.keys()
        assert all(same_bits(loaded[name], tensors[name]) for name in tensors)
    loaded = fastio.load_file(str(tmp_path / "theirs.safetensors"), device=torch.device("cpu"))
    assert loaded.keys() == library.keys()
    assert all(same_bits(loaded[name], library[name]) for name in library)


def test_a_tensor_outlives_the_others(tmp_path: Path) -> None:
    tensors = state()
    fastio.save_file(tensors, tmp_path / "a")
    kept = fastio.load_file(tmp_path / "a")["large"]
    gc.collect()
    assert same_bits(kept, tensors["large"])


def test_the_transfer_is_recorded_as_unverified(tmp_path: Path) -> None:
    fastio.save_file(state(), tmp_path / "a", checksums=False)
    with fastio.record() as transfers:
        fastio.load_file(tmp_path / "a")
    assert [(one.op, one.format, one.verified) for one in transfers] == [("load", "safetensors", False)]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    fastio.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    fastio.save(torch.ones(3), tmp_path / "a.npy")
    (tmp_path / "text").write_text("no tensors at all, but some words")
    (tmp_path / "empty").touch()
    for name in ("a.pt", "a.npy", "text", "empty"):
        with pytest.raises(safetensors.SafetensorError):
            safetensors.torch.load_file(tmp_path / name)
        suffix = name[1:]
        expected = fastio.FormatError if suffix in (".pt", ".npy") else fastio.CorruptFileError
        with pytest.raises(expected, match=f"found a {suffix}" if expected is fastio.FormatError else name):
            fastio.load_file(tmp_path / name)


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    fastio.save_file(state(), tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    for kept in (len(whole) - 1, 5000, 4095, 9, 3):
        (tmp_path / "a").write_bytes(whole[:kept])
        with pytest.raises(fastio.CorruptFileError, match="/a"):
            fastio.load_file(tmp_path / "a")


def test_missing_files_and_folders_raise_as_open_does(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        fastio.load_file(tmp_path / "missing")
    for load in (fastio.load, fastio.load_file):
        with pytest.raises(IsADirectoryError, match=r"fastio\.load_model"):
            load(tmp_path)
    with pytest.raises(FileNotFoundError):
        fastio.save_file(state(), tmp_path / "missing" / "a")


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_an_index_is_no_file_of_tensors(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    for load in (fastio.load, fastio.load_file):
        with pytest.raises(fastio.FormatError, match="index of a model in shards"):
            load(tmp_path / name)


def test_what_the_format_cannot_hold_is_refused_and_leaves_the_old_file(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.ones(3)}, tmp_path / "a")
    tied = torch.ones(4)
    for bad in ({"x": tied, "y": tied[:2]}, [tied], {"x": 3}, {3: tied}, {"x": tied.to_sparse()}):
        with pytest.raises((ValueError, RuntimeError, AttributeError, TypeError)):
            safetensors.torch.save_file(bad, tmp_path / "b")
        with pytest.raises(fastio.FormatError, match="/a"):
            fastio.save_file(bad, tmp_path / "a")  # type: ignore[arg-type]
    with pytest.raises(fastio.FormatError, match="str to str"):
        fastio.save_file({"x": tied}, tmp_path / "a", metadata={"step": 3})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"expected a path .*; fastio\.save takes file objects"):
        fastio.save_file({"x": tied}, io.BytesIO())  # type: ignore[arg-type]
    assert torch.equal(fastio.load_file(tmp_path / "a")["a"], torch.ones(3))


def test_non_contiguous_tensors_are_packed(tmp_path: Path) -> None:
    columns = torch.randn(30, 20).t()
    fastio.save_file({"a": columns}, tmp_path / "a")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "a")["a"], columns)


def test_a_device_that_is_none_is_refused(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.ones(3)}, tmp_path / "a")
    with pytest.raises(RuntimeError, match="foo"):
        fastio.load_file(tmp_path / "a", device="foo")
