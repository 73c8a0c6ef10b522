"""Ranks that load the same files together: each reads a share, and what one finds is an error of all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import fastio
import rank_weights
from fastio.models.part_batches import Batch
from fastio.models.rank_rounds import shares
from rank_weights import Model, state_of
from ranks import WORLD, Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(WORLD, tmp_path_factory.mktemp("ranks"), timeout=30) as running:
        yield running


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A model of seed 1 in several shards."""
    fastio.save_model(Model(1), tmp_path, max_shard_size="4MiB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def drop(folder: Path) -> int:
    """Take files out of the page cache; returns their bytes."""
    nbytes = 0
    for path in [folder] if folder.is_file() else folder.glob("*"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        nbytes += os.fstat(fd).st_size
        os.close(fd)
    return nbytes


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize("options", [{}, {"atomic": True}, {"verify": False}, {"dtype": torch.float64}])
def test_all_ranks_have_all_tensors(ranks: Ranks, saved: Path, count: int, meta: bool, options: dict[str, Any]) -> None:
    """One rank reads each, and the others' transfers say which, and that it compared them."""
    state = Model(1).state_dict()
    total = sum(tensor.nbytes for name, tensor in state.items() if name != "head.weight")
    for rank, answer in enumerate(ranks.run(rank_weights.load, str(saved), count, meta, options)[:count]):
        wrong, _, transfers = answer
        assert wrong == []
        received = [one for one in transfers if one[0] == "broadcast"]
        assert sum(nbytes for _, nbytes, *_ in transfers) == total
        assert 0 < sum(nbytes for _, nbytes, *_ in received) < total
        verified = options.get("verify", True)
        assert {one[2] for one in transfers} == {verified}
        assert {one[3].split(" read it")[0] for one in received} <= {f"rank {n}" for n in range(count) if n != rank}
        assert all(one[3].endswith("compared it with its checksums") is verified for one in received)


@pytest.mark.parametrize("options", [{}, {"atomic": True}])
@pytest.mark.parametrize("count", [2, 4])
def test_nested_states_are_filled_from_pt_files(
    ranks: Ranks, tmp_path: Path, count: int, options: dict[str, Any]
) -> None:
    fastio.save(state_of(1), tmp_path / "a.pt")
    assert ranks.run(rank_weights.load_into, str(tmp_path / "a.pt"), count, options)[:count] == [[]] * count


def test_tensors_that_share_a_part_of_their_memory_are_refused_by_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    state = {"one": torch.full((2_000_000,), 1.0), "other": torch.full((2_000_000,), 2.0), "third": torch.ones(300_000)}
    fastio.save_file(state, tmp_path / "a.safetensors")
    for kind, text, memory in ranks.run(rank_weights.overlapping, str(tmp_path / "a.safetensors")):
        assert kind == "ModelMismatchError"
        assert "'one' and 'other' share a part of their memory" in text
        assert memory == 0


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("budget", ["1MiB", "64MiB"])
def test_all_tensors_are_read_in_their_order(ranks: Ranks, saved: Path, count: int, budget: str) -> None:
    ways = ["get_tensors", "tensors", "tensors", "get_tensors"]
    answers = ranks.run(rank_weights.stream, str(saved), count, ways, budget)
    assert answers[:count] == [[[]] * len(ways)] * count


@pytest.mark.parametrize("count", [2, 4])
def test_all_together_read_each_file_once(ranks: Ranks, tmp_path: Path, count: int) -> None:
    """Into modules, to new memory, and through a reader."""
    tensors = {f"layer{n}": torch.randn(1024, 1024) for n in range(24)}
    fastio.save_file(tensors, tmp_path / "model.safetensors")
    nbytes = drop(tmp_path)
    assert nbytes <= sum(ranks.run(rank_weights.read_all, str(tmp_path), count)) <= 1.02 * nbytes
    for meta in (False, True):
        nbytes = drop(tmp_path)
        answers = ranks.run(rank_weights.load_layers, str(tmp_path), count, meta)
        assert [wrong for wrong, _ in answers] == [[]] * WORLD
        assert nbytes <= sum(read for _, read in answers) <= 1.02 * nbytes


@pytest.mark.parametrize("count", [2, 4])
def test_slices_of_a_cold_file_are_read_once_by_all_together(ranks: Ranks, tmp_path: Path, count: int) -> None:
    """Each rank wants columns of rows, of which other ranks want others."""
    tensors = {f"{kind}{n}": torch.randn(2048, 1024) for n in range(4) for kind in ("row", "column")}
    tensors |= {f"narrow column{n}": torch.randn(8192, 128) for n in range(4)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    drop(tmp_path)
    answers = ranks.run(rank_weights.slices, str(tmp_path), count)
    assert [wrong for *_, wrong in answers] == [[]] * WORLD
    wanted, read = (sum(answer[index] for answer in answers) for index in (0, 1))
    assert wanted == sum(tensor.nbytes for tensor in tensors.values())
    assert read <= 1.05 * wanted


def test_ranks_read_by_turns_and_a_round_has_no_more_bytes_than_allowed() -> None:
    class Sized(Batch):
        @property
        def nbytes(self) -> int:
            return self.indices[0]

    found = [Sized([], [nbytes]) for nbytes in (9, 1, 9, 1, 1, 1, 3)]

    def sizes(world: int, most: float = inf) -> list[dict[int, int]]:
        return [{rank: batch.nbytes for rank, batch in shared.items()} for shared in shares(found, world, most)]

    assert sizes(2) == [{0: 9, 1: 1}, {0: 9, 1: 1}, {0: 1, 1: 1}, {0: 3}]
    assert sizes(3, 9) == [{0: 9}, {1: 1}, {2: 9}, {0: 1, 1: 1, 2: 1}, {0: 3}]


HOW = ["shape", "dtype", "name", "argument", "layout", "file", "modified", "missing", "device"]
SAID = {
    "shape": ("ModelMismatchError", "has shape"),
    "dtype": ("ModelMismatchError", "argument 'dtype': torch.float64 there, None on rank 0"),
    "name": ("ModelMismatchError", "tensor 'scale': only rank 0 has it"),
    "argument": ("ModelMismatchError", "argument 'atomic': True there, False on rank 0"),
    "layout": ("ModelMismatchError", "tensor 'convolution.weight'"),
    "file": ("ModelMismatchError", "CRC-32"),
    "modified": ("ModelMismatchError", " ns there, "),
    "missing": ("FileNotFoundError", "nowhere"),
    "device": ("ModelMismatchError", "to new memory on cpu"),
}


@pytest.mark.parametrize("how", HOW)
def test_ranks_that_would_load_something_else_are_refused_on_all(ranks: Ranks, saved: Path, how: str) -> None:
    (saved / "other").mkdir()
    fastio.save_model(Model(3), saved / "other", max_shard_size="4MiB")
    for number in (1, 3):
        (saved / f"other{number}").mkdir()
        safetensors.torch.save_model(Model(number), str(saved / f"other{number}" / "model.safetensors"))
    for rank, (kind, text) in enumerate(ranks.run(rank_weights.load_differing, str(saved), how)):
        assert (kind, SAID[how][1] in text) == (SAID[how][0], True), (rank, text)
        named = how not in ("shape", "missing") or rank < WORLD - 1
        assert (f"rank {WORLD - 1}" in text) is named, text


def flip(folder: Path, name: str) -> None:
    """Damage a tensor of a model of seed 1."""
    content = Model(1).state_dict()[name].contiguous().numpy().tobytes()
    for path in folder.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        at = data.find(content)
        if at >= 0:
            data[at + 7] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["embedding.weight", "layers.3.weight", "narrow.weight"])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_damaged_tensor_is_an_error_of_all(ranks: Ranks, saved: Path, name: str, atomic: bool) -> None:
    flip(saved, name)
    answers = ranks.run(rank_weights.load_failing, str(saved), "", {"atomic": atomic})
    readers = [rank for rank, ((_, text), *_) in enumerate(answers) if "raised this" not in text]
    assert len(readers) == 1
    for rank, ((kind, text), changed, wrong) in enumerate(answers):
        assert kind == "ChecksumError"
        assert f"'{name}'" in text
        assert (f"rank {readers[0]} raised this" in text) is (rank != readers[0])
        assert name in wrong
        assert not (atomic and changed)
        assert ("partly filled" in text) is bool(changed)


def test_damaged_tensors_are_left_out_on_all(ranks: Ranks, saved: Path) -> None:
    flip(saved, "layers.3.weight")
    flip(saved, "narrow.bias")
    expected = (["layers.3.weight", "narrow.bias"], [])
    assert ranks.run(rank_weights.load_undamaged, str(saved)) == [(expected, expected[0])] * WORLD


def test_a_file_that_is_cut_while_it_is_open_is_an_error_of_all(ranks: Ranks, tmp_path: Path) -> None:
    fastio.save_model(Model(1), tmp_path / "model.safetensors")
    answers = ranks.run(rank_weights.load_failing, str(tmp_path), str(tmp_path / "model.safetensors"), {})
    assert {kind for (kind, _), *_ in answers} == {"CorruptFileError"}
    assert ranks.run(rank_weights.load_failing, str(tmp_path), "", {})[0][0][0] == "CorruptFileError"


def test_ranks_that_stop_are_told_to_those_that_go_on(ranks: Ranks, saved: Path) -> None:
    assert ranks.run(rank_weights.stop_early, str(saved), [0, 1, 2, 3]) == [("", "")] * WORLD
    answers = ranks.run(rank_weights.stop_early, str(saved), [2])
    assert answers.pop(2) == ("", "")
    assert all(kind == "FastIOError" and "rank 2 raised this" in text for kind, text in answers)
    assert ranks.run(rank_weights.stop_early, str(saved), []) == [("", "")] * WORLD


def test_modules_with_hooks_are_loaded_through_them_on_all(ranks: Ranks, saved: Path) -> None:
    assert ranks.run(rank_weights.load_hooked, str(saved), False) == [(("", ""), [])] * WORLD
    for rank, ((kind, text), _) in enumerate(ranks.run(rank_weights.load_hooked, str(saved), True)):
        assert kind == ("Strange" if rank == 1 else "FastIOError")
        assert "it is strange" in text
        assert ("rank 1 raised this" in text) is (rank != 1)


def test_a_group_without_a_backend_for_a_device_is_refused(ranks: Ranks) -> None:
    assert ranks.run(rank_weights.backend_of, "cpu") == ["gloo"] * WORLD
    for good, text in ranks.answers(rank_weights.backend_of, "cuda"):
        assert not good
        assert "UnsupportedError: the process group has no backend for memory on cuda, it has cpu:gloo" in text


def test_a_group_must_be_there(saved: Path) -> None:
    with pytest.raises(ValueError, match="call init_process_group first"):
        fastio.load_model(Model(2), saved, group=True)
    with pytest.raises(ValueError, match="call init_process_group first"):
        fastio.safe_open(saved, group=True)
