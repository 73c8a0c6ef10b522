"""Tests common to the block store and the tool store, and how the tool store chooses and learns."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import warm_python
from disks import tmpfs
from fastio import dicts
from fastio.errors import FolderMissingError, RefusedError, TransferError
from fastio.offload.stores import tool_file
from fastio.offload.stores.block_store import BlockStore
from fastio.offload.stores.tiers import Store
from fastio.offload.stores.tool_store import ToolStore
from faults import build_shim
from sharing import problems_of_sharing

PAGE = 4096
MIB = 1 << 20
TOOLS = ("posix", "uring", "torch", "numpy")

Opener = Callable[[Path], Any]


@pytest.fixture(params=["block", "tools", *TOOLS])
def opener(request: pytest.FixtureRequest) -> Opener:
    openers: dict[str, Opener] = {"block": BlockStore, "tools": ToolStore}
    tool = str(request.param)
    return openers.get(tool, lambda folder: ToolStore(folder, policy=tool))


@pytest.fixture
def store(opener: Opener, tmp_path: Path) -> Iterator[Any]:
    with opener(tmp_path) as opened:
        yield opened


def memory(nbytes: int, shift: int = 0) -> torch.Tensor:
    """Zeros that begin ``shift`` bytes into a page, between guard bytes."""
    whole = torch.zeros(nbytes + 3 * PAGE, dtype=torch.uint8)
    first = -whole.data_ptr() % PAGE + shift
    return whole[first : first + nbytes]


def blob(nbytes: int, seed: int, shift: int = 0) -> torch.Tensor:
    made = memory(nbytes, shift)
    made.random_(1, 256, generator=torch.Generator().manual_seed(seed))
    return made


def write(store: Store, index: int, data: torch.Tensor) -> None:
    store.write(index, data.data_ptr(), data.nbytes)
    store.wait(index)


def fetch(store: Store, index: int, nbytes: int, shift: int = 0) -> torch.Tensor:
    came = memory(nbytes, shift)
    store.read(index, came.data_ptr(), nbytes)
    store.wait(index)
    assert store.is_done(index)
    # The bytes after it are still zero: no store may write there.
    assert not torch.empty(0, dtype=torch.uint8).set_(came.untyped_storage())[came.storage_offset() + nbytes :].any()
    return came


# Properties of every store


@pytest.mark.parametrize("shift", [0, 64, 3])
@pytest.mark.parametrize("nbytes", [1, 100, PAGE, 70_001, MIB, 5 * MIB + 12, 20 * MIB])
def test_read_returns_the_written_bytes(store: Any, nbytes: int, shift: int) -> None:
    data = blob(nbytes, nbytes, shift)
    write(store, 7, data)
    assert 7 in store
    assert torch.equal(fetch(store, 7, nbytes, shift), data)
    assert torch.equal(fetch(store, 7, nbytes, PAGE - 8), data)
    assert torch.equal(fetch(store, 7, nbytes // 2), data[: nbytes // 2])
    assert store.update() == 0
    assert not hasattr(store, "notes") or store.notes == ()


def test_many_blobs_are_read_in_any_order(store: Any) -> None:
    blobs = {index: blob(3 * PAGE + 11 * index, index) for index in range(60)}
    for index, data in blobs.items():
        write(store, index, data)
    for index in reversed(blobs):
        assert torch.equal(fetch(store, index, blobs[index].nbytes), blobs[index])
    for index in range(0, 60, 2):
        store.free(index)
        write(store, index, blobs[59 - index])
    for index in range(60):
        expected = blobs[index if index % 2 else 59 - index]
        assert torch.equal(fetch(store, index, expected.nbytes), expected)
        store.free(index)
    assert store.stats.bytes_used == 0


def test_unknown_index_raises_index_error(store: Any) -> None:
    touches = (store.is_done, store.wait, store.free, lambda index: fetch(store, index, 1))
    for touch in touches:
        with pytest.raises(IndexError, match="index 3 is not in the"):
            touch(3)
    assert 3 not in store


def test_taken_index_raises_value_error(store: Any) -> None:
    data = blob(PAGE, 1)
    write(store, 3, data)
    with pytest.raises(ValueError, match="index 3 is in the"):
        write(store, 3, blob(PAGE, 2))
    assert torch.equal(fetch(store, 3, PAGE), data)


def test_freed_index_is_unknown_and_reusable(store: Any) -> None:
    write(store, 3, blob(PAGE, 1))
    store.free(3)
    with pytest.raises(IndexError, match="index 3 is not in the"):
        fetch(store, 3, PAGE)
    other = blob(2 * PAGE, 2)
    write(store, 3, other)
    assert torch.equal(fetch(store, 3, 2 * PAGE), other)


def test_reading_more_than_was_written_raises_value_error(store: Any) -> None:
    write(store, 3, blob(100, 1))
    with pytest.raises(ValueError, match="cannot read 101 bytes of index 3, which has 100"):
        fetch(store, 3, 101)


def test_empty_blob_is_stored(store: Any) -> None:
    store.write(0, 0, 0)
    store.read(0, 0, 0)
    store.wait(0)
    assert store.is_done(0)


def test_missing_folder_raises_folder_missing_error(opener: Opener, tmp_path: Path) -> None:
    with pytest.raises(FolderMissingError, match="none"):
        opener(tmp_path / "none")


def test_closed_store_raises_store_gone_error(store: Any) -> None:
    write(store, 3, blob(PAGE, 1))
    store.close()
    store.close()
    for touch in (store.update, lambda: store.is_done(3), lambda: write(store, 4, blob(1, 1))):
        with pytest.raises(RuntimeError, match="closed"):
            touch()
    assert store.stats.bytes_written >= PAGE


def test_store_leaves_no_files_and_no_open_descriptors(opener: Opener, tmp_path: Path) -> None:
    with opener(tmp_path) as warm:  # create rings and kept buffers before counting
        write(warm, 0, blob(MIB, 1))
        fetch(warm, 0, MIB)
    before = sorted(os.listdir("/proc/self/fd"))
    for close in (True, False):
        store = opener(tmp_path)
        for index in range(4):
            write(store, index, blob(MIB, index))
        assert os.listdir(tmp_path) == []
        if close:
            store.close()
        del store
        gc.collect()
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_threads_share_a_store(store: Any) -> None:
    assert problems_of_sharing(store, 4, 30_000, blob, write, fetch) == []


def check_full_disk(store: Any, folder: Path) -> None:
    """Fill the store: the error says so, existing blobs stay readable, and freed space is reused."""
    written: dict[int, torch.Tensor] = {}

    def fill() -> None:
        for index in range(100):
            data = blob(MIB, index)
            write(store, index, data)
            written[index] = data

    with pytest.raises(TransferError) as caught:
        fill()
    assert caught.value.errno == errno.ENOSPC
    assert str(folder) in str(caught.value)
    assert len(written) >= 4
    assert len(written) not in store
    for index, data in written.items():
        assert torch.equal(fetch(store, index, MIB), data)
    store.free(2)
    write(store, 200, written[0])
    assert torch.equal(fetch(store, 200, MIB), written[0])


def test_full_disk_raises_enospc_and_keeps_the_blobs(opener: Opener, tmp_path: Path) -> None:
    with tmpfs(tmp_path, 8), opener(tmp_path) as store:
        check_full_disk(store, tmp_path)


KILLED = """
import os, signal, sys, torch
from fastio.offload.stores.{module} import {name}
store = {name}(sys.argv[1])
data = torch.ones(1 << 20, dtype=torch.uint8)
for index in range(8):
    store.write(index, data.data_ptr(), data.nbytes)
    store.wait(index)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("module", "name"), [("block_store", "BlockStore"), ("tool_store", "ToolStore")])
def test_a_killed_process_leaves_nothing(tmp_path: Path, module: str, name: str) -> None:
    code = KILLED.format(module=module, name=name)
    ended = warm_python.run(code, str(tmp_path))
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert os.listdir(tmp_path) == []


# Choosing and learning


def context(op: str) -> dicts.Context:
    if op == "save":
        return dicts.Context("save", "raw", "cpu", durable=False)
    return dicts.Context("load", "raw", "cpu", resident=False)


def taught(seconds: dict[int, dict[str, tuple[float, float]]]) -> dicts.WRDic:
    """A dictionary with known write and read times of the tools, by size."""
    dictionary = dicts.WRDic()
    for nbytes, tools in seconds.items():
        for _ in range(40):
            for tool, (write_s, read_s) in tools.items():
                dictionary.observe(context("save"), nbytes, tool, write_s)
                dictionary.observe(context("load"), nbytes, tool, read_s)
    return dictionary


# Sizes so far apart that measurements of one do not affect the other.
BEST = {8192: "posix", MIB // 2: "numpy", 16 * MIB: "uring"}
QUICKEST_TO_WRITE = {8192: "numpy", MIB // 2: "torch", 16 * MIB: "posix"}


@pytest.mark.parametrize("nbytes", BEST)
def test_tool_is_chosen_by_size_and_by_write_plus_read_time(tmp_path: Path, nbytes: int) -> None:
    seconds = {size: dict.fromkeys(TOOLS, (4.0, 4.0)) for size in BEST}
    for size, tool in BEST.items():
        seconds[size][tool] = 1.0, 0.7
        seconds[size][QUICKEST_TO_WRITE[size]] = 0.7, 5.0
    # Only once: this disk has other times than the dictionary, and every call is learned.
    with ToolStore(tmp_path, taught(seconds)) as store:
        write(store, 0, blob(nbytes, 1))
        assert store.stats.tools == {BEST[nbytes]: 1}


def test_every_tool_is_tried_and_writes_and_reads_are_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of times that a busy machine does not change: a tool whose first try meets a stall is tried again much later."""
    observe, took = dicts.Dictionary.observe, {tool: 1e-3 + 2e-4 * place for place, tool in enumerate(TOOLS)}
    monkeypatch.setattr(dicts.Dictionary, "observe", lambda self, c, n, tool, _: observe(self, c, n, tool, took[tool]))
    nbytes = 256 << 10
    data = blob(nbytes, 1)
    with ToolStore(tmp_path) as store:
        for index in range(1000):  # tries take a share of the time, so a slow first one delays the next
            write(store, index, data)
            fetch(store, index, nbytes)
            store.free(index)
            if set(store.stats.tools) == set(TOOLS) and min(store.stats.tools.values()) > 1:  # the first is warm-up
                break
        assert set(store.stats.tools) == set(TOOLS)
        assert sum(store.stats.tools.values()) == index + 1
    wrdic = dicts.default("w+r", str(tmp_path))
    for op in ("save", "load"):
        explanation = wrdic.explain(context(op), nbytes, TOOLS)
        assert all(entry.samples > 0 for entry in explanation.entries)
    assert set(wrdic.times(context("save"), nbytes, TOOLS)) == set(TOOLS)
    assert "to save and load" in wrdic.explain(context("save"), nbytes, TOOLS).reason
    # Other formats are not affected.
    assert dicts.default("w", str(tmp_path)).times(context("save")._replace(format="pt"), nbytes, TOOLS) == {}


def test_blob_is_read_by_the_tool_that_wrote_it(tmp_path: Path) -> None:
    learned: list[tuple[str, str]] = []

    class Spy(dicts.WRDic):
        def observe(self, context: dicts.Context, nbytes: int, tool: str, seconds: float) -> None:
            assert seconds > 0
            learned.append((context.op, tool))
            super().observe(context, nbytes, tool, seconds)

    data = blob(MIB, 1)
    with ToolStore(tmp_path, Spy()) as store:
        for index in range(20):
            write(store, index, data)
        for index in reversed(range(20)):
            fetch(store, index, MIB)
    writers, readers = learned[:20], learned[20:]
    assert [op for op, _ in writers] == ["save"] * 20
    assert readers == [("load", tool) for _, tool in reversed(writers)]
    assert len({tool for _, tool in writers}) > 1


def test_stats_count_blocks_and_drive_wear(tmp_path: Path) -> None:
    with ToolStore(tmp_path, "posix") as store:
        write(store, 0, blob(PAGE + 1, 1))
        fetch(store, 0, PAGE + 1)
        stats = store.stats
    assert (stats.bytes_written, stats.bytes_read, stats.bytes_used) == (2 * PAGE, 2 * PAGE, 2 * PAGE)
    assert stats.tools == {"posix": 1}
    filesystem = os.statvfs(tmp_path)
    assert stats.drive_nbytes == filesystem.f_blocks * filesystem.f_frsize
    assert stats.drive_writes_per_day == pytest.approx(2 * PAGE / stats.drive_nbytes / (stats.seconds / 86_400))
    assert stats.lifetime_days == pytest.approx(3 * 5 * 365 / stats.drive_writes_per_day)


def test_unknown_policy_raises_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="policy='teleport'"):
        ToolStore(tmp_path, "teleport")


# In the background


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Tools move no byte before it is set."""
    opened, call = threading.Event(), tool_file.call_transport

    def wait_and_call(*given: Any) -> Any:
        assert opened.wait(300)
        return call(*given)

    monkeypatch.setattr(tool_file, "call_transport", wait_and_call)
    yield opened
    opened.set()


def test_callers_wait_for_no_transfer_but_in_wait(tmp_path: Path, gate: threading.Event) -> None:
    blobs = [blob(MIB, index) for index in range(4)]
    with ToolStore(tmp_path, "posix") as store:
        for index, data in enumerate(blobs):
            store.write(index, data.data_ptr(), data.nbytes)
        assert store.update() == 4
        assert store.finished([*range(4), 9]) == [9]
        assert not store.is_done(0)
        gate.set()
        store.wait(3)
        for index, data in enumerate(blobs):
            assert torch.equal(fetch(store, index, MIB), data)
        assert store.update() == 0
        assert store.finished(range(4)) == [0, 1, 2, 3]


def test_freed_blob_that_was_not_begun_is_never_written(tmp_path: Path, gate: threading.Event) -> None:
    data = blob(MIB, 1)
    with ToolStore(tmp_path, "posix") as store:
        for index in range(4):
            store.write(index, data.data_ptr(), data.nbytes)
        store.free(3)
        assert 3 not in store
        gate.set()
        store.wait(2)
        store.close()
        assert store.stats.tools["posix"] <= 3


def test_folders_take_turns(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    with ToolStore(folders, "posix") as store:
        for index in range(7):
            write(store, index, blob(PAGE, index))
        links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        held = [sum(link.startswith(f"{folder}/") for link in links) for folder in folders]
        assert held == [3, 2, 2]
        for index in range(7):
            assert torch.equal(fetch(store, index, PAGE), blob(PAGE, index))
        assert store.stats.drive_nbytes == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    with pytest.raises(ValueError, match="at least one folder"):
        ToolStore([])


# Failures


def test_failing_tool_is_skipped_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: on a filesystem without O_DIRECT, detected while writing and while reading."""
    if os.geteuid() != 0:
        pytest.skip("needs the right to mount a filesystem without O_DIRECT")
    dictionary = taught({MIB: {"uring": (1e-6, 1e-6), "posix": (1e-3, 1e-3), "numpy": (1, 1), "torch": (1, 1)}})
    command = ["mount", "-t", "ramfs", "ramfs", str(tmp_path)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a ramfs")
    try:
        with ToolStore(tmp_path, dictionary) as store:
            data = blob(MIB, 1)
            write(store, 0, data)
            assert torch.equal(fetch(store, 0, MIB), data)
            assert store.stats.tools == {"posix": 1}
            (note,) = store.notes
            assert note.startswith("write: uring: ")
            assert "O_DIRECT" in note
            write(store, 1, data)
            assert store.notes == (note,)  # the dictionary learned the failure and avoids the tool for a while
        with ToolStore(tmp_path, "uring") as store:
            with pytest.raises(RefusedError, match=r"no tool could save index 5 of .*: uring: .*O_DIRECT"):
                write(store, 5, data)
            assert 5 not in store
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_deleted_folder_keeps_open_blobs_and_fails_new_writes(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    data = blob(MIB, 1)
    with ToolStore(folder) as store:
        write(store, 0, data)
        folder.rmdir()
        assert torch.equal(fetch(store, 0, MIB), data)
        with pytest.raises(TransferError, match="making a file for index 1") as caught:
            write(store, 1, data)
        assert caught.value.errno == errno.ENOENT
        assert caught.value.filename == str(folder)
        assert 1 not in store
        assert torch.equal(fetch(store, 0, MIB), data)


def test_too_many_open_files_raises_an_error_that_names_ulimit(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    data = blob(PAGE, 1)
    with ToolStore(tmp_path, "posix") as store:

        def fill() -> None:
            for index in range(100):
                write(store, index, data)

        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, limits[1]))
        try:
            with pytest.raises(TransferError, match=r"beside \d+ others .*`ulimit -n`") as caught:
                fill()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caught.value.errno == errno.EMFILE
        assert torch.equal(fetch(store, 0, PAGE), data)


def test_truncated_file_raises_corrupt_file_error(tmp_path: Path) -> None:
    with ToolStore(tmp_path, "numpy") as store:
        write(store, 3, blob(MIB, 1))
        link = next(
            name
            for name in os.listdir("/proc/self/fd")
            if os.readlink(f"/proc/self/fd/{name}").startswith(f"{tmp_path}")
        )
        os.truncate(f"/proc/self/fd/{link}", 5000)
        with pytest.raises(Exception, match="index 3") as caught:
            fetch(store, 3, MIB)
        assert type(caught.value).__name__ == "CorruptFileError"
        assert "numpy: read" in str(caught.value)
        assert str(tmp_path) in str(caught.value)


FAULTS = """
import ctypes, errno, json, os, sys, torch
from fastio.errors import FastIOError
from fastio.offload.stores.tool_store import ToolStore

folder, rounds = sys.argv[1], json.loads(sys.argv[2])
shim = ctypes.CDLL(None)
shim.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
data = torch.arange(3 << 20, dtype=torch.int32).view(torch.uint8)

def turn(store, index):
    came = torch.zeros_like(data)
    store.write(index, data.data_ptr(), data.nbytes)
    store.read(index, came.data_ptr(), data.nbytes)
    store.wait(index)
    assert torch.equal(came, data), "came back changed"
    store.free(index)

results = []
for tool, call, effect in rounds:
    with ToolStore(folder, tool) as store:
        turn(store, 0)
        assert shim.fault_arm(call.encode(), folder.encode(), 1, 1, effect) == 0
        found = {"error": None}
        try:
            turn(store, 1)
        except FastIOError as error:
            found = {"error": type(error).__name__, "errno": error.errno, "message": str(error)}
        found["strikes"] = shim.fault_disarm()
        if 1 in store:
            came = torch.zeros_like(data)
            store.read(1, came.data_ptr(), data.nbytes)
            store.wait(1)
            assert torch.equal(came, data), "the second try brought something else"
            store.free(1)
        turn(store, 1)
        found |= {"notes": store.notes, "used": store.stats.bytes_used, "folder": os.listdir(folder)}
        results.append(found)
print(json.dumps(results))
"""
SHORTER = -1
CALLS = [("uring", "ring_write"), ("uring", "ring_read"), ("posix", "write"), ("posix", "read"), ("numpy", "write")]
ROUNDS = [(tool, call, effect) for tool, call in CALLS for effect in (errno.EIO, SHORTER)]
ROUNDS += [(tool, "allocate", errno.ENOSPC) for tool in TOOLS]


def test_failing_system_calls_raise_named_errors_and_the_store_keeps_working(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, compiler: str
) -> None:
    """The error names index, folder and tool; the store keeps working; short transfers are completed."""
    environment = {**os.environ, "LD_PRELOAD": str(build_shim(compiler, tmp_path_factory.mktemp("shim")))}
    command = [sys.executable, "-c", FAULTS, str(tmp_path), json.dumps(ROUNDS)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    for (tool, call, effect), result in zip(ROUNDS, json.loads(ended.stdout), strict=True):
        where = f"{tool}, {call}, {effect}: {result}"
        assert result["strikes"] == 1, where
        assert (result["used"], result["folder"]) == (0, []), where
        if effect == SHORTER:
            assert result["error"] is None, where
            continue
        assert (result["error"], result["errno"]) == ("TransferError", effect), where
        direction = "read" if call.endswith("read") else "write"
        assert f"{tool}: {direction} of index 1" in result["message"], where
        assert str(tmp_path) in result["message"], where
