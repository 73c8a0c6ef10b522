"""Tests the staged store: any order of operations, late copies, failures, leaks."""

from __future__ import annotations

import errno
import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fastio.errors import FastIOError, RefusedError, TransferError
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.block_store import BlockStore
from fastio.offload.stores.copies import CpuCopies
from fastio.offload.stores.slab import Slab
from fastio.offload.stores.staged_store import StagedStore
from late_copies import LateCopies
from slow_store import SlowStore

PAGE = 4096
SLAB = 16 * PAGE


def blob(nbytes: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def write(store: Any, index: int, data: torch.Tensor) -> None:
    store.write(index, data.data_ptr(), data.nbytes)


def fetch(store: Any, index: int, nbytes: int) -> torch.Tensor:
    came = torch.zeros(nbytes, dtype=torch.uint8)
    store.read(index, came.data_ptr(), nbytes)
    store.wait(index)
    return came


# Any order of operations


@dataclass
class Record:
    """A blob that must exist. ``memory`` is what the store may still read, until its write has ended."""

    expected: torch.Tensor
    memory: torch.Tensor
    reads: list[torch.Tensor] = field(default_factory=list)
    written: bool = False


class Model(RuleBasedStateMachine):
    """A store compared with a dictionary.

    Memory that is the caller's again is overwritten, or watched: ``untouchable`` must not change.
    """

    store: Any
    copies: LateCopies
    failing: float

    def make(self, seed: int) -> None:
        raise NotImplementedError

    def check_empty(self) -> None:
        raise NotImplementedError

    @initialize(seed=st.integers(0, 1 << 32), failing=st.sampled_from([0.0, 0.0, 0.1, 0.5]))
    def open(self, seed: int, failing: float) -> None:
        self.failing = failing
        self.records: dict[int, Record] = {}
        self.untouchable: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.keep: list[torch.Tensor] = []
        self.copies = LateCopies(seed, failing=failing, refusing=failing / 5)
        self.make(seed)

    sizes = st.one_of(st.integers(0, 3 * PAGE), st.sampled_from([PAGE, SLAB - PAGE, SLAB, SLAB + 1, 2 * SLAB]))

    @rule(index=st.integers(0, 5), nbytes=sizes)
    def write(self, index: int, nbytes: int) -> None:
        expected = blob(nbytes, 10 * nbytes + index)
        if index in self.records:
            with pytest.raises(ValueError, match=f"index {index} is in the"):
                write(self.store, index, expected)
            return
        memory = expected.clone()
        error = None
        try:
            write(self.store, index, memory)
            self.records[index] = Record(expected, memory)
        except FastIOError as caught:
            error = caught
        assert (index in self.store) == (error is None)
        self.keep.append(memory)

    @precondition(lambda self: self.records)
    @rule(choice=st.integers(0, 100), share=st.sampled_from([1.0, 1.0, 0.3]))
    def read(self, choice: int, share: float) -> None:
        index, record = self._pick(choice)
        came = torch.zeros(int(record.expected.nbytes * share), dtype=torch.uint8)
        self.keep.append(came)
        try:
            self.store.read(index, came.data_ptr(), came.nbytes)
        except FastIOError:
            assert self.failing
            record.reads.clear()
            return
        record.reads.append(came)

    @precondition(lambda self: self.records)
    @rule(choice=st.integers(0, 100))
    def wait(self, choice: int) -> None:
        index, record = self._pick(choice)
        try:
            self.store.wait(index)
        except FastIOError:
            self._failed(record)
        else:
            assert self.store.is_done(index)
            self._succeeded(record)

    @precondition(lambda self: self.records)
    @rule(choice=st.integers(0, 100))
    def ask(self, choice: int) -> None:
        index, record = self._pick(choice)
        try:
            done = self.store.is_done(index)
        except FastIOError:
            self._failed(record)
            return
        if done:
            self._succeeded(record)

    @precondition(lambda self: self.records)
    @rule(choice=st.integers(0, 100))
    def free(self, choice: int) -> None:
        index, record = self._pick(choice)
        self.store.free(index)
        for forget in (self.store.free, self.store.is_done, self.store.wait):
            with pytest.raises(IndexError, match=f"index {index} is not"):
                forget(index)
        del self.records[index]
        self.untouchable += [(came, came.clone()) for came in record.reads]

    @rule()
    def update(self) -> None:
        assert self.store.update() >= 0

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        while self.store.update():
            pass
        for index, record in list(self.records.items()):
            self.wait(sorted(self.records).index(index))
            if not self.failing:
                assert torch.equal(fetch(self.store, index, record.expected.nbytes), record.expected)
            self.store.free(index)
            del self.records[index]
        while self.store.update():
            pass
        assert self.store.used == 0
        self.check_empty()
        self.copies.synchronize()
        assert all(torch.equal(now, then) for now, then in self.untouchable)
        self.store.close()
        self.store.close()
        with pytest.raises(RuntimeError, match="closed"):
            write(self.store, 0, blob(PAGE, 0))

    def _pick(self, choice: int) -> tuple[int, Record]:
        index = sorted(self.records)[choice % len(self.records)]
        return index, self.records[index]

    def _succeeded(self, record: Record) -> None:
        record.written = True
        record.memory.fill_(0xAA)  # no longer read
        for came in record.reads:
            assert torch.equal(came, record.expected[: came.nbytes])
            came.fill_(0xBB)
            self.untouchable.append((came, came.clone()))
        record.reads.clear()

    def _failed(self, record: Record) -> None:
        assert self.failing
        self.untouchable += [(came, came.clone()) for came in record.reads]
        record.reads.clear()


class StagedModel(Model):
    def make(self, seed: int) -> None:
        def failing(calls: int) -> list[int]:
            return [call for call in range(calls) if self.failing and (call * 2654435761 + seed) % 10 == 0]

        reads = dict.fromkeys(failing(50), 1)
        self.below = SlowStore(lag=seed % 5, failing_writes=set(failing(200)), failing_reads=reads)
        if self.failing:
            self.below.room = 4 * SLAB
        self.store = StagedStore(self.below, self.copies, SLAB)

    def check_empty(self) -> None:
        assert not self.below.blobs
        assert self.below.update() == 0


TestStagedStore = StagedModel.TestCase
TestStagedStore.settings = settings(max_examples=30, stateful_step_count=50, deadline=None)


# Single properties


@pytest.fixture(params=["staged", "late staged"])
def store(request: pytest.FixtureRequest) -> Any:
    copies = LateCopies(1) if "late" in request.param else CpuCopies()
    return StagedStore(SlowStore(), copies, SLAB)


def test_blobs_of_any_size_come_back_whole(store: Any) -> None:
    blobs = [blob(nbytes, nbytes) for nbytes in (0, 1, PAGE - 1, PAGE, PAGE + 1, SLAB, 3 * SLAB + 5)]
    for index, data in enumerate(blobs):
        write(store, index, data)
    for index, data in enumerate(blobs):
        assert torch.equal(fetch(store, index, data.nbytes), data)
        assert torch.equal(fetch(store, index, data.nbytes // 2), data[: data.nbytes // 2])
    store.close()


def test_misuse_raises_an_error_that_names_the_index(store: Any) -> None:
    data = blob(100, 1)
    write(store, 0, data)
    with pytest.raises(ValueError, match=r"index 0 is in the .* store: free it first"):
        write(store, 0, data)
    with pytest.raises(ValueError, match="cannot read 101 bytes of index 0, which has 100"):
        store.read(0, data.data_ptr(), 101)
    with pytest.raises(IndexError, match="index 7 is not in the"):
        fetch(store, 7, 1)
    store.close()


def test_memory_is_allocated_at_first_use_and_freed_on_close() -> None:
    def mapped() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        ranges = [line.split()[0].split("-") for line in lines]
        return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)

    slab = 1 << 32  # only written pages take memory
    before = mapped()
    made = StagedStore(SlowStore(), CpuCopies(), slab)
    assert mapped() < before + slab // 2
    write(made, 0, blob(PAGE, 0))
    assert mapped() >= before + slab
    made.close()
    assert mapped() < before + slab // 2


def test_failed_allocation_raises_refused_error_and_leaves_nothing() -> None:
    made = StagedStore(SlowStore(), CpuCopies(), 1 << 60)
    with pytest.raises(RefusedError, match="staging memory"):
        write(made, 0, blob(PAGE, 0))
    assert 0 not in made
    assert made.used == 0
    made.close()


def test_blob_can_be_freed_and_rewritten_with_pending_copies() -> None:
    copies = LateCopies(1, lag=1000)
    below = SlowStore(lag=1000)
    store = StagedStore(below, copies, SLAB)
    first, second, third = (blob(PAGE, seed) for seed in range(3))
    write(store, 0, first)
    store.free(0)
    write(store, 0, second)
    store.wait(0)
    came = torch.zeros(PAGE, dtype=torch.uint8)
    store.read(0, came.data_ptr(), PAGE)
    while below.update():
        pass
    store.update()  # being read back
    store.free(0)
    came.fill_(7)
    write(store, 0, third)
    assert torch.equal(fetch(store, 0, PAGE), third)
    copies.synchronize()
    assert bool((came == 7).all())
    store.free(0)
    assert store.used == 0
    store.close()


# Staged


def test_underlying_store_gets_the_bytes_only_after_the_copy() -> None:
    below = SlowStore(lag=0)
    store = StagedStore(below, LateCopies(3, lag=40), SLAB)
    data = blob(PAGE, 1)
    write(store, 0, data)
    assert below.log == []
    while not store.is_done(0):
        store.update()
    assert below.log == [("write", 0, PAGE)]
    assert below.blobs[0] == data.numpy().tobytes()
    store.close()
    assert not below.blobs
    assert not below.closed


def test_write_beyond_the_slab_waits_for_the_oldest() -> None:
    below = SlowStore(lag=1000)
    store = StagedStore(below, LateCopies(5, lag=1000), 4 * PAGE)
    blobs = [blob(PAGE, index) for index in range(40)]
    for index, data in enumerate(blobs):
        write(store, index, data)
        assert store.used <= 4 * PAGE
    assert [index for _, index, _ in below.log] == list(range(36))
    for index in reversed(range(40)):
        assert torch.equal(fetch(store, index, PAGE), blobs[index])
    store.close()


def test_errors_of_the_underlying_store_are_raised_by_wait() -> None:
    below = SlowStore(failing_writes={1}, failing_reads={0: 1}, room=2 * PAGE)
    store = StagedStore(below, CpuCopies(), SLAB)
    blobs = [blob(PAGE, index) for index in range(4)]
    write(store, 0, blobs[0])
    write(store, 1, blobs[1])
    store.wait(0)
    for _ in range(2):
        with pytest.raises(TransferError, match="write failed") as caught:
            store.wait(1)
        assert caught.value.errno == errno.EIO
    with pytest.raises(TransferError, match="write failed"):
        fetch(store, 1, PAGE)
    with pytest.raises(TransferError, match="read failed"):
        fetch(store, 0, PAGE)
    assert torch.equal(fetch(store, 0, PAGE), blobs[0])
    write(store, 2, blobs[2])
    store.wait(2)
    write(store, 3, blobs[3])
    with pytest.raises(TransferError) as caught:
        store.wait(3)
    assert caught.value.errno == errno.ENOSPC
    assert store.used == 0
    store.free(3)
    store.free(1)
    store.close()


def test_staged_store_over_the_block_store_returns_the_bytes(tmp_path: Path) -> None:
    with BlockStore(tmp_path) as below:
        store = StagedStore(below, LateCopies(7), 64 * PAGE)
        assert store.stats.bytes_written == 0
        for turn in range(3):
            blobs = {20 * turn + index: blob(index * 5000, index) for index in range(20)}
            for index, data in blobs.items():
                write(store, index, data)
                store.update()
            for index in reversed(blobs):
                assert torch.equal(fetch(store, index, blobs[index].nbytes), blobs[index])
                store.free(index)
        assert store.used == below.stats.bytes_used == 0
        assert store.stats.bytes_written > 0
        store.close()


class _Interrupted(SlowStore):
    def write(self, index: int, address: int, nbytes: int) -> None:
        super().write(index, address, nbytes)
        if index == 1:
            raise KeyboardInterrupt


def test_interrupt_loses_one_blob_and_never_reuses_its_block() -> None:
    below = _Interrupted(lag=1000)
    store = StagedStore(below, CpuCopies(), 4 * PAGE)
    blobs = [blob(PAGE, index) for index in range(9)]
    for index in range(2):
        write(store, index, blobs[index])
    with pytest.raises(KeyboardInterrupt):
        store.update()
    with pytest.raises(FastIOError, match="index 1: its transfer was interrupted"):
        store.wait(1)
    for index in range(2, 9):
        write(store, index, blobs[index])
    for index in (0, *range(2, 9)):
        assert torch.equal(fetch(store, index, PAGE), blobs[index])
    large = blob(SLAB, 10)
    write(store, 10, large)
    assert torch.equal(fetch(store, 10, SLAB), large)
    assert below.blobs[1] == blobs[1].numpy().tobytes(), "the device still used the block"
    store.close()


# The slab


def test_slab_grows_to_whole_pages_and_never_shrinks() -> None:
    slab = Slab(PAGE)
    first = slab.ephemeral(10)
    assert first % mmap.PAGESIZE == 0
    with pytest.raises(ArenaFullError):
        slab.resident(1)
    slab.free(first)
    slab.grow(PAGE + 1)
    assert slab.nbytes == 2 * PAGE
    slab.grow(1)
    assert slab.nbytes == 2 * PAGE
    assert slab.resident(PAGE) + PAGE == slab.resident(PAGE)
    slab.close()
