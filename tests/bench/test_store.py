"""``fastio-bench store``: the block store and fio on one file, verification, goals and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benching import LIMITS, MIB, invoke, on_disk
from fastio.offload.stores.block_store import BlockStore
from fastio_bench.harness import stats
from fastio_bench.harness.rounds import Failure, Measured, Sample
from fastio_bench.machine import disk_limit
from fastio_bench.store import addresses, command
from fastio_bench.store import rounds as store_rounds
from fastio_bench.store.rounds import READ, STORE, WRITE, StoreRounds, goals


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


class Noting:
    """A limit that records its files and their sizes."""

    name = "noting"

    def __init__(self) -> None:
        self.used: list[tuple[str, int, int, int]] = []

    def write(self, path: Path, nbytes: int) -> Measured:
        raise AssertionError("a fresh file is another file")

    def overwrite(self, path: Path, nbytes: int) -> Measured:
        return self._note(WRITE, path, nbytes)

    def read(self, path: Path, nbytes: int) -> Measured:
        return self._note(READ, path, nbytes)

    def _note(self, work: str, path: Path, nbytes: int) -> Measured:
        state = path.stat()
        self.used.append((work, state.st_ino, state.st_size, nbytes))
        return Measured(1.0, 0.5, way=self.name)


def test_contestants_use_one_file_in_turns(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noting = Noting()
    monkeypatch.setattr(disk_limit, "find", lambda: noting)
    outcomes = list(StoreRounds(disk, [MIB, 300_001], rounds=2, total=3 * MIB).run())
    assert not [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    told = [(o.work, o.workload, o.tool) for o in outcomes if isinstance(o, Sample)]
    turn = [STORE, disk_limit.TOOL, disk_limit.RING]
    sizes = [store_rounds.label(MIB), store_rounds.label(300_001)]
    assert told == [(work, size, tool) for size in sizes for work in (WRITE, READ) for _ in range(2) for tool in turn]
    blocks = 74 * 4096  # of 300,001 bytes; ten of them fit into the total
    for first, nbytes in ((0, 3 * MIB), (4, 10 * blocks)):
        used = noting.used[first : first + 4]
        assert len({inode for _, inode, _, _ in used}) == 1
        assert all((size, asked) == (nbytes, nbytes) for _, _, size, asked in used)
    assert {o.nbytes for o in outcomes if isinstance(o, Sample)} == {3 * MIB, 10 * blocks}
    assert not list(disk.iterdir())


def test_small_activations_count_as_whole_blocks(disk: Path) -> None:
    """A byte takes a block in the store; the bytes of a call, and its memory, stay within the request."""
    rounds = StoreRounds(disk, [1, 512, 4096], 1, 1 << 13)
    assert rounds.weights() == [1.0, 1.0, 1.0]
    samples = [one for one in rounds.run() if isinstance(one, Sample)]
    assert {one.nbytes for one in samples} == {1 << 13}


@pytest.mark.parametrize("tool", LIMITS)
def test_overwriting_keeps_the_file(tool: disk_limit.Limit, disk: Path) -> None:
    path = disk / "file"
    path.write_bytes(b"x" * (3 * MIB))
    inode = path.stat().st_ino
    assert tool.overwrite(path, 3 * MIB).seconds > 0
    assert (path.stat().st_ino, path.stat().st_size) == (inode, 3 * MIB)
    assert path.read_bytes() != b"x" * (3 * MIB)
    with pytest.raises(FileNotFoundError):
        tool.overwrite(disk / "missing", MIB)


def test_store_that_changes_bytes_raises(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = BlockStore.read

    def lossy(self: BlockStore, index: int, address: int, nbytes: int) -> None:
        if index != 1:
            read(self, index, address, nbytes)

    monkeypatch.setattr(BlockStore, "read", lossy)
    plan = StoreRounds(disk, [MIB], rounds=1, total=3 * MIB)
    monkeypatch.setattr(store_rounds, "_CHUNK", 1 << 10)
    with pytest.raises(OSError, match=f"changed what it was given, near byte {MIB}"):
        list(plan.run())
    assert not list(disk.iterdir())


def test_goals_compare_with_the_disk_limit() -> None:
    def samples(tool: str, cpu: float, *seconds: float) -> list[Sample]:
        return [Sample(WRITE, "2 MB", tool, number, 10**9, took, cpu) for number, took in enumerate(seconds)]

    told = [*samples(STORE, 0.035, 0.5, 0.5, 1.0), *samples(disk_limit.TOOL, 0.02, 0.4, 0.47, 0.8)]
    bandwidth, cpu = goals(stats.summarise(told, baseline=disk_limit.TOOL))
    assert (bandwidth.measured, bandwidth.met) == (pytest.approx(0.94), False)
    assert (cpu.measured, cpu.met) == (pytest.approx(0.015), True)
    assert list(goals(stats.summarise(samples(STORE, 0.1, 1.0), baseline=disk_limit.TOOL))) == []


def test_command_measures_and_writes_its_table(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_TOTAL", 4 * MIB)
    out = disk / "out"
    arguments = ("store", "--quick", "--sizes", "1MB,2MiB", "--rounds", "2", "--out", str(out), "--dir", str(disk))
    said = invoke(*arguments).stdout
    for expected in ("Goals", "block store", "2.097 MB", "CPU s/GB", "uring", "Block addresses"):
        assert expected in said
    told: dict[str, Any] = json.loads((out / "store-quick.json").read_text())
    assert told["settings"]["sizes"] == [1_000_000, 2 * MIB]
    assert len(told["findings"]["goals"]) == 2 * 2 * 2
    assert told["failures"] == []
    assert "no size" in invoke("store", "--sizes", "much", status=2).output
    assert "at least one byte" in invoke("store", "--sizes", "0", status=2).output


def test_iteration_writes_in_sequence_and_reads_in_reverse(disk: Path) -> None:
    """FlashNeuron's figure 11, of a whole iteration of training; all that was written is read."""
    write, read = addresses.record(disk)
    assert (write.direction, read.direction) == ("write", "read")
    assert write.commands > 10
    assert read.nbytes >= write.nbytes > 10 * MIB
    assert (write.in_order, read.in_order) == (1, 1)
    assert not list(disk.iterdir())


def test_runs_begin_where_addresses_jump() -> None:
    assert addresses.runs_of([(0, 4), (4, 2), (9, 1), (10, 1), (0, 9)]) == [0, 9, 0]
    assert addresses.runs_of([]) == []


def test_sizes_beyond_memory_are_left_out(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "available_memory", lambda: 8 * MIB)
    monkeypatch.setattr(command, "QUICK_TOTAL", MIB)
    said = invoke("store", "--quick", "--sizes", "1MiB,5MiB", "--rounds", "1", "--dir", str(disk)).stdout
    assert "left out, for want of memory or disk: activations of 5.243 MB" in said
