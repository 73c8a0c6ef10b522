"""prefetch and tensors() read ahead, coalesced and within a budget, and return what get_tensor returns."""

from __future__ import annotations

import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.models.part_batches import Batch
from fastio.models.part_reads import read_batch

MIB = 1 << 20


def save_two(folder: Path, large: int = 40) -> dict[str, torch.Tensor]:
    everything = {}
    for name in ("a", "b"):
        tensors = {f"{name}{n:02d}": torch.randn(64, 1024) for n in range(large)}
        tensors |= {f"{name}.small{n:03d}": torch.randn(n % 5, 3) for n in range(200)}
        fastio.save_file(tensors, folder / f"{name}.safetensors")
        everything |= tensors
    return everything


def wait_for_readers() -> None:
    """Return when no thread reads ahead."""
    end = time.monotonic() + 300
    while [one for one in threading.enumerate() if one.name == "fastio-read-ahead"]:  # its last steps are Python's
        assert time.monotonic() < end
        time.sleep(0.001)


def files(folder: Path) -> list[Path]:
    return [folder / "b.safetensors", folder / "a.safetensors"]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """(parts, bytes, whether on another thread) of each batch that is read."""
    found: list[tuple[int, int, bool]] = []
    own = threading.get_ident()

    def recording(batch: Batch, *arguments: Any) -> list[torch.Tensor]:
        found.append((len(batch.parts), batch.nbytes, threading.get_ident() != own))
        return read_batch(batch, *arguments)

    monkeypatch.setattr("fastio.models.tensor_reader.read_batch", recording)
    return found


@pytest.mark.parametrize("budget", [None, "64MiB", "1MiB", 300_000, 0])
def test_tensors_come_in_file_order_with_their_values(tmp_path: Path, budget: Any) -> None:
    everything = save_two(tmp_path)
    with fastio.safe_open(files(tmp_path)) as file:
        found = list(file.tensors(read_ahead=budget))
        assert [name for name, _ in found] == file.offset_keys()
    assert all(torch.equal(tensor, everything[name]) for name, tensor in found)


def test_neighbours_are_read_together_on_another_thread(tmp_path: Path, reads: list[tuple[int, int, bool]]) -> None:
    everything = save_two(tmp_path)
    with fastio.safe_open(files(tmp_path)) as file:
        file.prefetch(everything)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in everything.items())
    assert len(reads) == 2  # one for each file
    assert sum(parts for parts, *_ in reads) == len(everything)


def test_memory_budget_is_the_former_name_of_read_ahead(tmp_path: Path) -> None:
    everything = save_two(tmp_path)
    with fastio.safe_open(files(tmp_path)) as file, fastio.record() as transfers:
        assert dict(file.tensors(memory_budget="2MiB")).keys() == everything.keys()
        assert max(transfer.nbytes for transfer in transfers) <= MIB
        with pytest.raises(TypeError, match="give read_ahead"):
            file.tensors("2MiB", memory_budget="2MiB")


def test_a_stream_begins_with_a_small_transfer_and_grows(tmp_path: Path) -> None:
    """The first tensor waits for no more than 2 MiB, and later transfers are large."""
    everything = save_two(tmp_path, large=200)  # 50 MiB in a file
    with fastio.safe_open(files(tmp_path)) as file, fastio.record() as transfers:
        for number, (name, tensor) in enumerate(file.tensors("256MiB")):
            assert torch.equal(tensor, everything[name])
            if number == 0:
                assert transfers[0].nbytes <= 2 * MIB
    sizes = [transfer.nbytes for transfer in transfers]
    assert max(sizes) > 30 * MIB
    assert len(sizes) <= 7


def test_no_more_than_read_ahead_is_read_and_not_taken(tmp_path: Path) -> None:
    save_two(tmp_path)
    taken = most = 0
    with fastio.safe_open(files(tmp_path)) as file, fastio.record() as transfers:
        for number, (name, tensor) in enumerate(file.tensors("2MiB")):
            taken += tensor.nbytes
            if number % 20 == 0:
                wait_for_readers()  # they end where the next batch exceeds the bound
            ahead = sum(transfer.nbytes for transfer in transfers) - taken
            assert ahead <= 2 * MIB, name
            most = max(most, ahead)
    assert max(transfer.nbytes for transfer in transfers) <= MIB
    assert most > MIB


def test_without_read_ahead_a_stream_takes_a_share_of_the_free_memory(tmp_path: Path, monkeypatch: Any) -> None:
    save_two(tmp_path)
    monkeypatch.setattr("fastio.models.stream_memory.available_memory", lambda: 16 * MIB)
    with fastio.safe_open(files(tmp_path)) as file, fastio.record() as transfers:
        stream = file.tensors()
        next(stream)
        wait_for_readers()
        assert MIB < sum(transfer.nbytes for transfer in transfers) <= 2 * MIB + 64 * 4096


def test_a_stream_goes_on_where_no_memory_is_left(tmp_path: Path, monkeypatch: Any) -> None:
    everything = save_two(tmp_path)
    monkeypatch.setattr("fastio.models.stream_memory.available_memory", lambda: 0)
    with fastio.safe_open(files(tmp_path)) as file:
        for name, tensor in file.tensors():
            assert torch.equal(tensor, everything[name])


def test_an_iteration_that_is_left_early_ends_its_thread(tmp_path: Path) -> None:
    save_two(tmp_path)
    with fastio.safe_open(files(tmp_path)) as file:
        for _ in file.tensors(memory_budget="1MiB"):
            break
        stream = file.tensors(memory_budget="1MiB")
        next(stream)
    with pytest.raises(ValueError, match="closed"):
        next(stream)
    wait_for_readers()


def test_what_was_prefetched_is_returned_once(tmp_path: Path, reads: list[tuple[int, int, bool]]) -> None:
    everything = save_two(tmp_path)
    plan: list[Any] = ["a03", ("a04", slice(5, 9)), ("b00", (slice(None), slice(0, 8))), "a03", ("a05", [1, 2])]
    with fastio.safe_open(files(tmp_path)) as file:
        file.prefetch(plan)
        one, other = file.get_tensor("a03"), file.get_tensor("a03")
        assert torch.equal(one, everything["a03"])
        assert torch.equal(other, everything["a03"])
        assert one.data_ptr() != other.data_ptr()
        assert torch.equal(file.get_slice("a04")[5:9], everything["a04"][5:9])
        assert torch.equal(file.get_slice("b00")[:, :8], everything["b00"][:, :8])
        assert torch.equal(file.get_slice("a05")[[1, 2]], everything["a05"][[1, 2]])
        before = len(reads)
        assert torch.equal(file.get_tensor("a03"), everything["a03"])  # a third time: read again
        assert torch.equal(file.get_slice("a04")[5:8], everything["a04"][5:8])  # not planned
        assert len(reads) == before + 2
    assert before < len(plan) + 1


@pytest.mark.parametrize("budget", [None, "1MiB", 0])
def test_any_order_of_taking_is_right(tmp_path: Path, budget: Any) -> None:
    everything = save_two(tmp_path)
    with fastio.safe_open(files(tmp_path)) as file:
        file.prefetch(file.keys(), memory_budget=budget)
        for name in sorted(everything, reverse=True):
            assert torch.equal(file.get_tensor(name), everything[name])


def test_a_wrong_plan_reads_nothing(tmp_path: Path, reads: list[tuple[int, int, bool]]) -> None:
    save_two(tmp_path)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (["a00", "missing"], fastio.TensorMissingError, "missing"),
        (["a00", ("a01", (0, 0, 0))], IndexError, r"a.safetensors: 'a01' has shape \[64, 1024\]: too many"),
        ("a00", TypeError, "list of names"),
        (["a00", 3], TypeError, "pair"),
        ([("a00", 1, 2)], TypeError, "pair"),
    ]
    with fastio.safe_open(files(tmp_path)) as file:
        for plan, error, match in wrong:
            with pytest.raises(error, match=match):
                file.prefetch(plan)
        with pytest.raises(ValueError, match="memory_budget"):
            file.prefetch(["a00"], memory_budget="lots")
        with pytest.raises(ValueError, match="memory_budget"):
            file.tensors(memory_budget=-1)
    assert reads == []
    with pytest.raises(ValueError, match="closed"):
        file.prefetch(["a00"])


def test_a_read_that_fails_ahead_raises_where_the_tensor_is_wanted(tmp_path: Path) -> None:
    everything = save_two(tmp_path)
    with fastio.safe_open(files(tmp_path)) as file:
        os.truncate(tmp_path / "a.safetensors", 8192)
        file.prefetch(["b00", "a00"])
        assert torch.equal(file.get_tensor("b00"), everything["b00"])
        with pytest.raises(fastio.CorruptFileError, match=r"a\.safetensors"):
            file.get_tensor("a00")
        seen = []
        with pytest.raises(fastio.CorruptFileError, match=r"a\.safetensors"):
            seen += [name for name, _ in file.tensors()]
        assert all(name.startswith("b") for name in seen)


def test_several_threads_take_what_was_prefetched(tmp_path: Path) -> None:
    everything = save_two(tmp_path)
    wrong: list[str] = []

    def take(names: list[str], file: Any) -> None:
        wrong.extend(name for name in names if not torch.equal(file.get_tensor(name), everything[name]))

    with fastio.safe_open(files(tmp_path)) as file:
        file.prefetch(everything, memory_budget="1MiB")
        names = sorted(everything)
        takers = [threading.Thread(target=take, args=(names[n::4], file)) for n in range(4)]
        for one in takers:
            one.start()
        for one in takers:
            one.join()
    assert wrong == []


def test_without_threads_everything_is_read_by_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    everything = save_two(tmp_path)
    monkeypatch.setattr("fastio.runtime.interrupt_safe_thread.start_new_thread", refused)
    with fastio.safe_open(files(tmp_path)) as file:
        file.prefetch(["a00"])
        assert torch.equal(file.get_tensor("a00"), everything["a00"])
        assert all(torch.equal(tensor, everything[name]) for name, tensor in file.tensors("1MiB"))


def test_a_forked_child_reads_what_its_parent_was_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = save_two(tmp_path)
    may_read, own = threading.Event(), os.getpid()

    def held(batch: Batch, *arguments: Any) -> list[torch.Tensor]:
        assert os.getpid() != own or may_read.wait(300)
        return read_batch(batch, *arguments)

    monkeypatch.setattr("fastio.models.tensor_reader.read_batch", held)
    with fastio.safe_open(files(tmp_path)) as file:
        file.prefetch(["a00"])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                # numpy: torch's threads do not survive a fork.
                status = 0 if (file.get_tensor("a00").numpy() == everything["a00"].numpy()).all() else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        may_read.set()
        assert torch.equal(file.get_tensor("a00"), everything["a00"])


def test_prefetched_memory_is_dropped_with_the_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def recording(*arguments: Any) -> list[torch.Tensor]:
        tensors = read_batch(*arguments)
        made.extend(map(weakref.ref, tensors))
        return tensors

    fastio.save_file({"a": torch.zeros(16 * MIB), "b": torch.zeros(16 * MIB)}, tmp_path / "a")
    monkeypatch.setattr("fastio.models.tensor_reader.read_batch", recording)
    with fastio.safe_open(tmp_path / "a") as file:
        file.prefetch(["a"])
        wait_for_readers()
        assert [one() is not None for one in made] == [True]
        stream = file.tensors()
        del stream
        stream = file.tensors()
        next(stream)
        wait_for_readers()
    wait_for_readers()
    assert [one() for one in made] == [None] * len(made)
    assert len(made) >= 2
