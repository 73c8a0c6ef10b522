"""save_model writes the files that huggingface_hub writes, refuses what cannot be saved, and mixes no two saves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fastio
from fastio import api
from fastio.files.atomic_file import AtomicFile
from fastio.models.shards import split

INDEX = "model.safetensors.index.json"


def small(seed: int = 0, layers: int = 5, tied: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Module()
    model.embedding = nn.Embedding(20, 8)
    model.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
    model.head = nn.Linear(8, 20, bias=False)
    if tied:
        model.head.weight = model.embedding.weight
    return model


def equal(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("most", ["1KB", "300B", 700, "5GB"])
def test_files_and_index_are_hugging_faces(tmp_path: Path, most: Any) -> None:
    hub = pytest.importorskip("huggingface_hub")
    model = small()
    (tmp_path / "theirs").mkdir()
    size = int(str(most).removesuffix("B").replace("K", "000").replace("G", "000000000"))
    hub.save_torch_model(model, tmp_path / "theirs", max_shard_size=size, metadata={"k": "v"})
    fastio.save_model(model, tmp_path / "ours", max_shard_size=most, metadata={"k": "v"})
    names = sorted(path.name for path in (tmp_path / "ours").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "theirs").iterdir())
    for name in names:
        ours, theirs = tmp_path / "ours" / name, tmp_path / "theirs" / name
        if name == INDEX:
            assert json.loads(ours.read_text()) == json.loads(theirs.read_text())
            continue
        with safetensors.safe_open(ours, "pt") as one, safetensors.safe_open(theirs, "pt") as other:
            found = one.metadata()
            del found["fastio.checksums"]
            assert found == other.metadata()
            assert one.offset_keys() == other.offset_keys()
            for tensor in one.offset_keys():
                assert torch.equal(one.get_tensor(tensor), other.get_tensor(tensor))


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 60))
def test_the_split_is_the_hubs(sizes: list[int], most: int) -> None:
    hub = pytest.importorskip("huggingface_hub")
    named = {f"t{number}": size for number, size in enumerate(sizes)}
    tensors = {name: torch.empty(size, dtype=torch.uint8) for name, size in named.items()}
    theirs = hub.split_torch_state_dict_into_shards(tensors, max_shard_size=most)
    expected = theirs.filename_to_tensors
    # Without a tensor the hub makes no file; here an empty model is one file.
    assert split(named, most) == (expected or {"model.safetensors": []})


def test_each_library_loads_a_single_file(tmp_path: Path) -> None:
    model, other = small(), small(1)
    fastio.save_model(model, tmp_path / "a.safetensors", metadata={"k": "v"})
    assert safetensors.torch.load_model(other, tmp_path / "a.safetensors") == (set(), [])
    assert equal(model, other)
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as file:
        found = file.metadata()
    assert found.keys() == {"format", "head.weight", "k", "fastio.checksums"}
    assert (found["head.weight"], found["k"]) == ("embedding.weight", "v")


def test_a_save_over_another_leaves_one_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.backup").write_text("mine")
    for seed, most in enumerate(["1KB", "1KB", "5GB", "300B", "700B", "5GB", "5GB"]):
        model = small(seed)
        fastio.save_model(model, tmp_path, max_shard_size=most)
        loaded = small(99)
        fastio.load_model(loaded, tmp_path)
        assert equal(model, loaded)
        held = [path.name for path in tmp_path.iterdir() if path.suffix == ".safetensors"]
        index = tmp_path / INDEX
        assert index.exists() == (len(held) > 1)
        if len(held) > 1:
            assert set(json.loads(index.read_text())["weight_map"].values()) == set(held)
    assert (tmp_path / "config.json").read_text() == "{}"
    assert (tmp_path / "model.safetensors.backup").read_text() == "mine"


@pytest.mark.parametrize("old", ["1KB", "700B", "5GB", None])
@pytest.mark.parametrize("new", ["1KB", "700B", "5GB"])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_an_interrupted_save_never_leaves_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str | None, new: str, fails_at: int
) -> None:
    """What the folder then holds is the old model, the new one, or an error."""
    if old is not None:
        fastio.save_model(small(1), tmp_path, max_shard_size=old)
    before = set(os.listdir(tmp_path))
    calls: list[int] = []
    original = api.save

    def limited(*arguments: Any, **options: Any) -> Any:
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        calls.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(api, "save", limited)
    try:
        fastio.save_model(small(2), tmp_path, max_shard_size=new)
    except OSError:
        assert set(os.listdir(tmp_path)) <= before  # a full disk would stay full
        loaded = small(3)
        try:
            fastio.load_model(loaded, tmp_path)
        except (FileNotFoundError, fastio.ModelMismatchError):
            return
        assert old is not None
        assert equal(loaded, small(1))
    else:
        loaded = small(3)
        fastio.load_model(loaded, tmp_path)
        assert equal(loaded, small(2))


def test_an_interrupt_behind_the_last_rename_leaves_the_new_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fastio.save_model(small(1), tmp_path / "folder", max_shard_size="1KB")
    fastio.save_model(small(2), tmp_path / "new", max_shard_size="1KB")
    original = AtomicFile.commit

    def interrupted(new: AtomicFile, durable: bool) -> None:
        original(new, durable)
        if new.path.endswith(INDEX):
            raise KeyboardInterrupt

    monkeypatch.setattr(AtomicFile, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fastio.convert(tmp_path / "new", tmp_path / "folder", max_shard_size="700B", force=True)
    loaded = small(3)
    fastio.load_model(loaded, tmp_path / "folder")
    assert equal(loaded, small(2))
    with pytest.raises(KeyboardInterrupt):
        fastio.save_model(small(4), tmp_path / "folder", max_shard_size="1KB")
    fastio.load_model(loaded, tmp_path / "folder")
    assert equal(loaded, small(4))
    with pytest.raises(KeyboardInterrupt):
        fastio.save_model(small(4), tmp_path / "free", max_shard_size="1KB")
    assert not (tmp_path / "free").exists()


@pytest.mark.parametrize("most", ["1KB", "5GB"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_save_that_fails_leaves_no_folder_that_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, error: BaseException
) -> None:
    def fail(new: AtomicFile, durable: bool) -> None:
        raise error

    fastio.save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_text("kept")
    monkeypatch.setattr(AtomicFile, "commit", fail)
    for folder in ("new", "new/deeper", "new/and/deeper/", "mine", "mine/deeper", "theirs", "theirs/deeper"):
        with pytest.raises(type(error)):
            fastio.save_model(small(), f"{tmp_path}/{folder}", max_shard_size=most)
        with pytest.raises(type(error)):
            fastio.convert(tmp_path / "a.safetensors", f"{tmp_path}/{folder}/")
    assert sorted(map(str, tmp_path.rglob("*"))) == sorted(
        f"{tmp_path}/{name}" for name in ("a.safetensors", "mine", "theirs", "theirs/file")
    )


def test_a_folder_that_others_use_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(new: AtomicFile, durable: bool) -> None:
        (tmp_path / "new" / "theirs").write_text("kept")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AtomicFile, "commit", fail)
    with pytest.raises(OSError, match="No space"):
        fastio.save_model(small(), tmp_path / "new" / "deeper")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["new", "new/theirs"]


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(fastio.TransferError, match=r"making the folder .*expected a folder, found a file") as caught:
        fastio.save_model(small(), tmp_path / "file" / "deeper")
    assert caught.value.filename == str(tmp_path / "file")
    with pytest.raises(fastio.TransferError, match="expected a folder, found a file; name another"):
        fastio.save_model(small(), tmp_path / "file")
    with pytest.raises(fastio.TransferError, match="making the folder"):
        fastio.save_model(small(), tmp_path / "new" / ("x" * 300))
    assert os.listdir(tmp_path) == ["file"]


def test_a_state_dict_is_no_module(tmp_path: Path) -> None:
    wrong: Any = small().state_dict()
    with pytest.raises(TypeError, match=r"expected a module, got OrderedDict; save_file and fastio\.save"):
        fastio.save_model(wrong, tmp_path / "new")
    assert os.listdir(tmp_path) == []


def test_a_shard_without_its_index_is_no_model(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(FileNotFoundError, match="model-00001-of-00002"):
        fastio.safe_open(tmp_path)


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    fastio.save_model(small(1), tmp_path, max_shard_size="1KB")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    sparse, meta, partly, lazy = small(), small(), small(), small()
    sparse.register_buffer("bad", torch.eye(3).to_sparse())
    meta.register_buffer("bad", torch.empty(3, device="meta"))
    shared = torch.ones(10)
    partly.register_buffer("one", shared[:6])
    partly.register_buffer("two", shared[4:])
    lazy.bad = nn.LazyLinear(3)
    complex128 = small()
    complex128.register_buffer("bad", torch.ones(2, dtype=torch.complex128))
    for model, match in (
        (sparse, "'bad' is sparse"),
        (meta, "'bad' has a shape, but no data"),
        (partly, "'one', 'two' share memory, and none"),
        (lazy, r"'bad\.\w+' is no tensor"),
        (complex128, "'bad' has dtype torch.complex128"),
    ):
        with pytest.raises(fastio.FormatError, match=match):
            fastio.save_model(model, tmp_path, max_shard_size="1KB")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_bad_arguments(tmp_path: Path) -> None:
    for most in (0, "many", -3, None):
        with pytest.raises(ValueError, match="max_shard_size"):
            fastio.save_model(small(), tmp_path / "m", max_shard_size=most)  # type: ignore[arg-type]
    assert not (tmp_path / "m").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        fastio.save_model(small(), tmp_path / "file")


def test_parameters_without_elements_are_not_tied(tmp_path: Path) -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.empty(0, 2))
            self.b = self.a
            self.c = nn.Parameter(torch.ones(2))

    fastio.save_model(Empty(), tmp_path / "a.safetensors")
    assert safetensors.torch.load_model(Empty(), tmp_path / "a.safetensors") == (set(), [])
    safetensors.torch.save_model(Empty(), str(tmp_path / "b.safetensors"))
    assert fastio.load_model(Empty(), tmp_path / "b.safetensors") == ([], [])
