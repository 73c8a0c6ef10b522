"""Models at remote places: one file or shards with an index, saved, replaced, loaded and opened."""

from __future__ import annotations

import errno

import pytest
import torch

import fastio
from commands import run
from remote_places import RangedStore, equal, names_below

INDEX = "model.safetensors.index.json"
SHARDS = {INDEX, *(f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3))}


def model(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(*(torch.nn.Linear(100, 100) for _ in range(3)))


def test_shards_are_saved_and_loaded(place: str) -> None:
    url, first, second = f"{place}/model", model(1), model(2)
    fastio.save_model(first, url, max_shard_size="45KB")
    assert names_below(url) == SHARDS
    assert fastio.load_model(second, url) == ([], [])
    assert equal(second.state_dict(), first.state_dict())
    with fastio.safe_open(f"{url}/{INDEX}") as files:
        assert equal(dict(files.tensors()), first.state_dict())
    assert fastio.verify(f"{url}/model-00001-of-00003.safetensors").checksummed
    assert run("verify", url).output.count(": verified: ") == 3
    assert run("inspect", url).output.count("0.weight") == 1


def test_a_model_replaces_another_one(place: str) -> None:
    url, other = f"{place}/model", model(2)
    fastio.save_model(model(1), url, max_shard_size="45KB")
    fastio.save_model(model(3), url, max_shard_size="45KB")
    fastio.load_model(other, url)
    assert equal(other.state_dict(), model(3).state_dict())
    fastio.save_model(model(4), url)
    assert names_below(url) == {"model.safetensors"}
    fastio.load_model(other, url)
    assert equal(other.state_dict(), model(4).state_dict())


def test_one_file_by_its_name(place: str) -> None:
    url, other = f"{place}/one.safetensors", model(2)
    fastio.save_model(model(1), url)
    fastio.load_model(other, url)
    assert equal(other.state_dict(), model(1).state_dict())
    fastio.save(model(5).state_dict(), f"{place}/pytorch_model.bin")
    fastio.load_model(other, [f"{place}/pytorch_model.bin"])
    assert equal(other.state_dict(), model(5).state_dict())


def test_a_missing_shard_is_named(store: type[RangedStore]) -> None:
    fastio.save_model(model(1), "ranged://bucket/model", max_shard_size="45KB")
    del store.objects["bucket/model/model-00002-of-00003.safetensors"]
    with pytest.raises(fastio.ShardMissingError, match="names this file for 2 tensors") as caught:
        fastio.load_model(model(2), "ranged://bucket/model")
    assert caught.value.filename == "ranged://bucket/model/model-00002-of-00003.safetensors"


def test_a_folder_without_a_model(store: type[RangedStore]) -> None:
    store.objects["bucket/folder/notes.txt"] = b"notes"
    with pytest.raises(FileNotFoundError, match=r"expected model\.safetensors or .* found no file of safetensors"):
        fastio.safe_open("ranged://bucket/folder")
    with pytest.raises(fastio.RemoteError, match="check the URL") as caught:
        fastio.safe_open("ranged://bucket/missing")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("failing", ["model-00003-of-00003.safetensors", INDEX])
def test_a_failed_save_leaves_no_new_file(store: type[RangedStore], failing: str) -> None:
    def hook(operation: str, path: str) -> None:
        if operation == "put_file" and path.endswith(failing):
            raise PermissionError(errno.EACCES, "no rights", path)

    store.hook = hook
    with pytest.raises(fastio.RemoteError, match="give credentials that may do this") as caught:
        fastio.save_model(model(1), "ranged://bucket/model", max_shard_size="45KB")
    assert isinstance(caught.value, PermissionError)
    assert caught.value.filename == f"ranged://bucket/model/{failing}"
    assert not store.objects
    # Files of the same names were there: a reader must not take old and new ones for one model.
    store.hook = None
    fastio.save_model(model(1), "ranged://bucket/model", max_shard_size="45KB")
    store.hook = hook
    with pytest.raises(fastio.RemoteError):
        fastio.save_model(model(3), "ranged://bucket/model", max_shard_size="45KB")
    store.hook = None
    with pytest.raises(FileNotFoundError, match="shards without an index"):
        fastio.load_model(model(2), "ranged://bucket/model")


def test_a_refused_model_uploads_nothing(store: type[RangedStore]) -> None:
    lazy = torch.nn.LazyLinear(3)
    with pytest.raises(fastio.FormatError, match="ranged://bucket/model"):
        fastio.save_model(lazy, "ranged://bucket/model")
    assert not store.objects
