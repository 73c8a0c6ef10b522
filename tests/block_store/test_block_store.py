"""Tests the block store: any order of operations compared with a dictionary, and each kind of failure."""

from __future__ import annotations

import errno
import os
import pickle
import re
import resource
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import warm_python
from disks import tmpfs
from fastio.errors import DeviceInUseError, FastIOError, FolderMissingError, TransferError
from fastio.offload.stores.block_store import BLOCK, BlockStore, StoreGoneError
from fastio.offload.stores.endurance import DriveWear
from faults import ALWAYS, NOTHING, SHORTER, Fault, Server
from sharing import problems_of_sharing

MIB = 1 << 20


@pytest.fixture(params=["uring", "threads"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(tmp_path: Path, driver: str) -> Iterator[BlockStore]:
    with BlockStore(tmp_path, driver=driver) as opened:
        assert (opened.driver, opened.notes) == (driver, ())
        yield opened


def memory(nbytes: int, shift: int = 0) -> torch.Tensor:
    """Zeros whose address is ``shift`` bytes after the start of a page."""
    whole = torch.zeros(nbytes + 2 * BLOCK, dtype=torch.uint8)
    first = -whole.data_ptr() % BLOCK + shift
    return whole[first : first + nbytes]


def blob(nbytes: int, seed: int, shift: int = 0) -> torch.Tensor:
    made = memory(nbytes, shift)
    made.random_(0, 256, generator=torch.Generator().manual_seed(seed))
    return made


def write(store: BlockStore, index: int, data: torch.Tensor) -> None:
    store.write(index, data.data_ptr(), data.nbytes)


def read(store: BlockStore, index: int, data: torch.Tensor) -> None:
    store.read(index, data.data_ptr(), data.nbytes)


def fetch(store: BlockStore, index: int, nbytes: int) -> torch.Tensor:
    came = memory(nbytes)
    read(store, index, came)
    store.wait(index)
    return came


# Any order of operations


class Model(RuleBasedStateMachine):
    """The store compared with a dictionary.

    ``untouchable`` is memory of reads whose index was freed: it must stay zero.
    """

    CAPACITY = 12 * MIB

    @initialize(driver=st.sampled_from(["uring", "threads"]), places=st.integers(1, 3))
    def open(self, driver: str, places: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.store = BlockStore([self.folder.name] * places, self.CAPACITY, driver)
        self.blobs: dict[int, torch.Tensor] = {}
        self.reads: dict[int, list[torch.Tensor]] = {}
        self.untouchable: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.keep: list[torch.Tensor] = []

    sizes = st.one_of(st.integers(0, 3 * BLOCK), st.integers(0, 4 * MIB), st.sampled_from([BLOCK, MIB, 3 * MIB + 1]))
    shifts = st.sampled_from([0, 0, 1, 64, 512])

    @rule(index=st.integers(0, 12), nbytes=sizes, shift=shifts)
    def write(self, index: int, nbytes: int, shift: int) -> None:
        data = blob(nbytes, index + nbytes, shift)
        if index in self.blobs:
            with pytest.raises(ValueError, match=f"index {index} is in the block store"):
                write(self.store, index, data)
            return
        number = None
        try:
            write(self.store, index, data)
            self.blobs[index] = data
        except TransferError as error:
            number = error.errno
        assert number in (None, errno.ENOSPC)
        assert (index in self.store) == (number is None)

    @precondition(lambda self: self.blobs)
    @rule(choice=st.integers(0, 100), share=st.sampled_from([1.0, 1.0, 0.3]), shift=shifts)
    def read(self, choice: int, share: float, shift: int) -> None:
        index = sorted(self.blobs)[choice % len(self.blobs)]
        came = memory(int(self.blobs[index].nbytes * share), shift)
        read(self.store, index, came)
        self.reads.setdefault(index, []).append(came)

    @precondition(lambda self: self.blobs)
    @rule(choice=st.integers(0, 100))
    def wait(self, choice: int) -> None:
        index = sorted(self.blobs)[choice % len(self.blobs)]
        self.store.wait(index)
        assert self.store.is_done(index)
        for came in self.reads.pop(index, []):
            assert torch.equal(came, self.blobs[index][: came.nbytes])

    @precondition(lambda self: self.blobs)
    @rule(choice=st.integers(0, 100))
    def free(self, choice: int) -> None:
        index = sorted(self.blobs)[choice % len(self.blobs)]
        self.store.free(index)
        with pytest.raises(IndexError, match=f"index {index} is not"):
            self.store.is_done(index)
        self.keep.append(self.blobs.pop(index))  # a write that the device still performs
        self.untouchable += [(came, came.clone()) for came in self.reads.pop(index, [])]

    @rule()
    def update(self) -> None:
        assert self.store.update() >= 0

    @invariant()
    def blocks_are_accounted_for(self) -> None:
        live = sum(-(-data.nbytes // BLOCK) for data in self.blobs.values()) * BLOCK if hasattr(self, "blobs") else 0
        if hasattr(self, "store"):
            assert live <= self.store.stats.bytes_used <= self.CAPACITY

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        while self.store.update():
            pass
        for index in list(self.blobs):
            self.wait(0)
            assert torch.equal(fetch(self.store, index, self.blobs[index].nbytes), self.blobs[index])
            self.store.free(index)
            del self.blobs[index]
        assert self.store.stats.bytes_used == 0
        assert all(torch.equal(now, then) for now, then in self.untouchable)
        assert os.listdir(self.folder.name) == []
        self.store.close()
        self.folder.cleanup()


TestAnyOrder = Model.TestCase
TestAnyOrder.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


# Single properties


def test_more_commands_than_the_queue_holds_are_completed(store: BlockStore) -> None:
    blobs = [blob(70 * BLOCK + index, index) for index in range(100)]
    for index, data in enumerate(blobs):
        write(store, index, data)
    assert store.stats.commands_under_way >= 100
    assert 0 < store.stats.bytes_used <= store.stats.bytes_provisioned
    came = [memory(data.nbytes) for data in blobs]
    for index, data in enumerate(came):  # most writes are still pending
        read(store, index, data)
    for index in range(100):
        store.wait(index)
    assert all(torch.equal(data, written) for data, written in zip(came, blobs, strict=True))
    assert store.update() == 0


@pytest.mark.parametrize("places", [1, 2])
def test_iteration_writes_in_sequence_and_reads_in_reverse(tmp_path: Path, driver: str, places: int) -> None:
    """FlashNeuron's figure 11: the same pattern in every iteration and on each device."""
    sizes = [3 * MIB, 512 * BLOCK, 5 * MIB + 100, BLOCK, 2 * MIB]
    blobs = [blob(nbytes, nbytes) for nbytes in sizes]
    with BlockStore([tmp_path] * places, driver=driver) as store:
        for _ in range(2):
            store.recording = True
            for index, data in enumerate(blobs):
                write(store, index, data)
            for index in range(len(blobs)):
                store.wait(index)
            written = store.trace
            ranges = []
            for index in reversed(range(len(blobs))):
                seen = len(store.trace)
                assert torch.equal(fetch(store, index, sizes[index]), blobs[index])
                ranges.append(store.trace[seen:])
                store.free(index)
            assert {direction for direction, *_ in written} == {"write"}
            for device in range(places):
                commands = [(lba, blocks) for _, number, lba, blocks in written if number == device]
                ends = [0, *(lba + blocks for lba, blocks in commands)]
                assert [lba for lba, _ in commands] == ends[:-1]
                reads = [[lba for _, number, lba, _ in blob_reads if number == device] for blob_reads in ranges]
                assert all(lbas == sorted(lbas) for lbas in reads)
                firsts = [lbas[0] for lbas in reads if lbas]
                assert firsts == sorted(firsts, reverse=True)
                assert firsts[-1] == 0
            assert sorted(written) == sorted(("write", *rest) for blob_reads in ranges for _, *rest in blob_reads)


def test_striping_spreads_a_blob_over_the_places(tmp_path: Path, driver: str) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with BlockStore(folders, driver=driver) as store:
        store.recording = True
        data = blob(8 * MIB + 5, 1)
        write(store, 0, data)
        assert torch.equal(fetch(store, 0, data.nbytes), data)
        shares = [sum(blocks for _, number, _, blocks in store.trace if number == device) for device in (0, 1)]
        assert sum(shares) * BLOCK == 2 * (8 * MIB + BLOCK)
        assert abs(shares[0] - shares[1]) * BLOCK <= 2 * MIB


def test_only_the_tail_of_aligned_memory_is_bounced(store: BlockStore) -> None:
    data = blob(MIB + 5, 1)
    write(store, 0, data)
    assert torch.equal(fetch(store, 0, data.nbytes), data)
    assert store.stats.bytes_bounced == 2 * 5
    assert store.stats.bytes_written == store.stats.bytes_read == MIB + BLOCK


def rings() -> dict[str, int]:
    """Return the io_urings of this process, and the number of memory ranges that each has pinned."""
    fds = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and "[io_uring]" in os.readlink(fd)]
    infos = {fd.name: Path("/proc/self/fdinfo", fd.name).read_text() for fd in fds}
    return {fd: len(re.findall(r"^ *\d+: 0x[0-9a-f]+/[1-9]", text, re.MULTILINE)) for fd, text in infos.items()}


def test_unaligned_memory_is_copied_through_registered_memory(tmp_path: Path) -> None:
    others = rings()
    with BlockStore(tmp_path, driver="uring") as store:
        (ring,) = rings().keys() - others
        aligned, data = blob(MIB, 1), blob(3 * MIB, 2, shift=64)
        write(store, 0, aligned)
        store.wait(0)
        assert rings()[ring] == 0  # not registered before it is needed
        write(store, 1, data)
        came = memory(data.nbytes, shift=64)
        read(store, 1, came)
        store.wait(1)
        assert torch.equal(came, data)
        assert store.notes == ()
        assert rings()[ring] == 1
        assert store.stats.bytes_bounced == 2 * data.nbytes


def test_mapped_memory_is_pinned_until_unmap(tmp_path: Path, driver: str) -> None:
    data, more = blob(3 * MIB, 1), blob(MIB, 2)
    others = rings().keys()
    with BlockStore(tmp_path, driver=driver) as store:

        def pinned() -> int:
            return sum(rings()[ring] for ring in rings().keys() - others)

        for piece in (data, more):
            store.map(piece.data_ptr(), piece.nbytes)
            with pytest.raises(ValueError, match="mapped already"):
                store.map(piece.data_ptr(), piece.nbytes)
        assert pinned() == (2 if driver == "uring" else 0)
        for index, piece in enumerate((data, more)):
            write(store, index, piece)
        store.unmap(data.data_ptr())  # unmap waits for the write
        expected = data.clone()
        data.zero_()
        assert torch.equal(fetch(store, 0, data.nbytes), expected)
        assert torch.equal(fetch(store, 1, more.nbytes), more)
        assert pinned() == (1 if driver == "uring" else 0)
        with pytest.raises(ValueError, match="not mapped"):
            store.unmap(data.data_ptr())
        store.map(data.data_ptr(), MIB)
        assert pinned() == (2 if driver == "uring" else 0)
        assert store.notes == ()


def test_failed_map_raises_an_error_and_the_store_keeps_working(tmp_path: Path) -> None:
    with BlockStore(tmp_path, driver="uring") as store:
        with pytest.raises(TransferError, match="io_uring does not register memory"):
            store.map(4096, MIB)  # not in this address space
        with pytest.raises(ValueError, match="0 bytes"):
            store.map(4096, 0)
        write(store, 0, data := blob(MIB, 1))
        assert torch.equal(fetch(store, 0, MIB), data)


NOTHING_PINNED = """
import os, resource, sys, torch
from fastio.offload.stores.block_store import BlockStore
hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, hard))  # enough for the ring itself
os.chdir(sys.argv[1])
if os.geteuid() == 0:  # root may pin what it likes
    os.chown(".", 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
with BlockStore(".") as store:
    data = torch.arange(1 << 18)[1:]
    came = torch.zeros(1 << 18, dtype=torch.int64)[1:]
    store.write(0, data.data_ptr(), data.nbytes)
    assert store.notes == (), store.notes
    store.read(0, came.data_ptr(), came.nbytes)
    store.wait(0)
    assert torch.equal(came, data)
    print(store.driver, *store.notes)
"""


def test_store_without_pinned_memory_uses_plain_commands_with_a_note(tmp_path: Path) -> None:
    ended = warm_python.run(NOTHING_PINNED, str(tmp_path))
    expected = "uring bounced bytes by plain commands: io_uring does not register memory (Cannot allocate memory)\n"
    assert ended.stdout == expected, ended.stderr


def test_reads_are_sent_before_writes(store: BlockStore) -> None:
    first, second = blob(MIB, 1), blob(MIB, 2)
    write(store, 0, first)
    store.wait(0)
    store.recording = True
    write(store, 1, second)
    fetch(store, 0, MIB)
    store.wait(1)
    assert [direction for direction, *_ in store.trace] == ["read", "write"]


def test_freed_space_is_reused_before_the_files_grow(tmp_path: Path, driver: str) -> None:
    with BlockStore(tmp_path, 4 * MIB, driver) as store:
        blobs = [blob(MIB, index) for index in range(4)]
        for index, data in enumerate(blobs):
            write(store, index, data)
            store.wait(index)
        with pytest.raises(TransferError, match=r"growing the store to \d+ bytes of 4194304") as caught:
            write(store, 9, blobs[0])
        assert caught.value.errno == errno.ENOSPC
        store.free(1)
        store.recording = True
        write(store, 9, blobs[0])
        store.wait(9)
        assert store.trace == [("write", 0, MIB // BLOCK, MIB // BLOCK)]
        for index, data in ((0, blobs[0]), (2, blobs[2]), (3, blobs[3]), (9, blobs[0])):
            assert torch.equal(fetch(store, index, MIB), data)


def test_threads_share_a_store(store: BlockStore) -> None:
    assert problems_of_sharing(store, 6, 300_000, blob, write, fetch) == []
    assert store.stats.bytes_used == 0


def test_writes_of_an_ended_thread_are_readable(store: BlockStore) -> None:
    blobs = [blob(MIB, index) for index in range(12)]

    def submit() -> None:
        for index, data in enumerate(blobs):
            write(store, index, data)
        store.update()

    thread = threading.Thread(target=submit)
    thread.start()
    thread.join()
    for index, data in enumerate(blobs):
        store.wait(index)
        assert torch.equal(fetch(store, index, MIB), data)


def test_folder_stays_empty_even_while_the_store_is_open(store: BlockStore, tmp_path: Path) -> None:
    data = blob(MIB, 1)
    write(store, 0, data)
    store.wait(0)
    assert os.listdir(tmp_path) == []
    tmp_path.rmdir()
    assert torch.equal(fetch(store, 0, MIB), data)
    tmp_path.mkdir()


def test_empty_blob_and_empty_file_are_accepted(tmp_path: Path, driver: str) -> None:
    path = tmp_path / "empty"
    path.touch()
    with BlockStore(path, driver=driver) as store:
        store.write(0, 0, 0)
        store.read(0, 0, 0)
        assert store.is_done(0)
        data = blob(BLOCK, 1)
        write(store, 1, data)
        assert torch.equal(fetch(store, 1, BLOCK), data)
        assert path.stat().st_size > 0
    assert path.stat().st_size == 0


def test_close_drops_pending_commands(tmp_path: Path, driver: str) -> None:
    data = blob(64 * MIB, 1)
    with BlockStore(tmp_path, driver=driver) as store:
        write(store, 0, data)
        assert store.update() > 0
    assert store.stats.bytes_written < data.nbytes
    assert store.stats.commands_under_way == 0


@pytest.fixture
def block_device(tmp_path: Path) -> Iterator[str]:
    """A block device of 4 MiB."""
    image = tmp_path / "image"
    image.write_bytes(bytes(4 * MIB))
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("needs losetup and the right to use it")
    made = subprocess.run(["losetup", "-f", "--show", str(image)], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"losetup: {made.stderr.strip()}")
    yield made.stdout.strip()
    subprocess.run(["losetup", "-d", made.stdout.strip()], check=True)


def test_block_device_is_used_whole_and_never_grown(block_device: str, driver: str) -> None:
    with BlockStore(block_device, driver=driver) as store:
        assert store.notes == ()
        assert store.stats.drive_nbytes == 4 * MIB
        data = blob(3 * MIB + 7, 1)
        write(store, 0, data)
        assert torch.equal(fetch(store, 0, data.nbytes), data)
        with pytest.raises(TransferError) as caught:
            write(store, 1, data)
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(DeviceInUseError, match="in use"):
            BlockStore(block_device)


# Failures


def test_misuse_raises_an_error_that_names_the_cause(store: BlockStore, tmp_path: Path) -> None:
    data = blob(100, 1)
    write(store, 0, data)
    with pytest.raises(ValueError, match="cannot read 101 bytes of index 0, which has 100"):
        store.read(0, data.data_ptr(), 101)
    with pytest.raises(IndexError, match="index 7 is not in the block store"):
        fetch(store, 7, 1)
    with pytest.raises(ValueError, match="'sideways'"):
        store.issue(0, 0, 0, "sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown driver 'floppy': expected one of uring, threads"):
        BlockStore(tmp_path, driver="floppy")
    with pytest.raises(ValueError, match="at least one folder"):
        BlockStore([])
    with pytest.raises(ValueError, match=r"expected 4,096 bytes \(a block\) or more"):
        BlockStore(tmp_path, 5)
    with pytest.raises(FolderMissingError):
        BlockStore(tmp_path / "none")
    (tmp_path / "precious").write_text("data")
    with pytest.raises(ValueError, match="has contents"):
        BlockStore(tmp_path / "precious")
    store.close()
    store.close()
    for touch in (store.update, lambda: 0 in store, lambda: store.wait(0)):
        with pytest.raises(StoreGoneError, match=f"{tmp_path}: this block store is closed"):
            touch()
    assert issubclass(StoreGoneError, FastIOError)
    assert store.stats.bytes_written <= BLOCK


def check_full_disk(store: BlockStore, number: int = errno.ENOSPC) -> TransferError:
    """Fill the store: the error says so, and existing and later blobs are whole."""
    written: dict[int, torch.Tensor] = {}
    error = None
    for index in range(100):
        data = blob(MIB, index)
        try:
            write(store, index, data)
        except TransferError as caught:
            error = caught
            break
        written[index] = data
    assert error is not None
    assert error.errno == number
    assert "growing the store" in str(error)
    assert store.places[0] in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert len(written) >= 4
    for index, data in written.items():
        assert torch.equal(fetch(store, index, MIB), data)
    store.free(2)
    write(store, 200, written[0])
    assert torch.equal(fetch(store, 200, MIB), written[0])
    return error


def test_file_size_limit_is_told_and_keeps_the_blobs(store: BlockStore) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MIB, limits[1]))
    try:
        error = check_full_disk(store, errno.EFBIG)
        assert f"ulimit -f allows files of {8 * MIB} bytes, so raise it" in str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_full_disk_raises_enospc_and_keeps_the_blobs(tmp_path: Path, driver: str) -> None:
    with tmpfs(tmp_path, 8), BlockStore(tmp_path, driver=driver) as store:
        check_full_disk(store)


FORK = """
import os, sys, torch
from fastio.offload.stores.block_store import BlockStore
with BlockStore(sys.argv[1], driver=sys.argv[2]) as store:
    data = torch.arange(1 << 20)
    store.write(0, data.data_ptr(), data.nbytes)
    store.update()
    child = os.fork()
    if child == 0:
        for touch in (store.update, lambda: store.wait(0), lambda: store.free(0), store.close, lambda: store.stats):
            try:
                touch()
            except RuntimeError as error:
                assert f"belongs to process {os.getppid()}" in str(error), error
            else:
                os._exit(1)
        del store, touch
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    came = torch.zeros_like(data)
    store.read(0, came.data_ptr(), came.nbytes)
    store.wait(0)
    assert torch.equal(came, data)
print("whole")
"""


def test_forked_child_gets_store_gone_error(tmp_path: Path, driver: str) -> None:
    ended = warm_python.run(FORK, str(tmp_path), driver)
    assert ended.stdout == "whole\n", ended.stderr


def check_after(result: dict[str, Any]) -> None:
    assert result["used"] == 0
    assert result["folder"] == []
    assert result["leaked"] == []


CALLS = [("uring", "ring_write"), ("uring", "ring_read"), ("threads", "write"), ("threads", "read")]


@pytest.mark.parametrize("effect", [errno.EIO, NOTHING])
@pytest.mark.parametrize(("driver", "call"), CALLS)
def test_failed_transfer_raises_an_error_and_the_store_keeps_working(
    server: Server, tmp_path: Path, driver: str, call: str, effect: int
) -> None:
    results = server.run("sweep_store", folder=str(tmp_path), driver=driver, call=call, effect=effect)
    assert len(results) >= 4
    for result in results:
        error = result["error"]
        assert error is not None, "the fault passed as success"
        assert (error["type"], error["errno"]) == ("TransferError", errno.EIO)
        assert f"driver {driver}: {call.rpartition('_')[2]} of index " in error["message"]
        assert " at LBA " in error["message"]
        assert ("stopped moving bytes" in error["message"]) == (effect == NOTHING)
        assert error["filename"] == str(tmp_path)
        check_after(result)


@pytest.mark.parametrize("effect", [SHORTER, errno.EINTR, errno.EAGAIN])
@pytest.mark.parametrize(("driver", "call"), CALLS)
def test_short_and_interrupted_transfers_are_completed(
    server: Server, tmp_path: Path, driver: str, call: str, effect: int
) -> None:
    results = server.run("sweep_store", folder=str(tmp_path), driver=driver, call=call, effect=effect)
    assert len(results) >= 4
    for result in results:
        assert result["error"] is None
        check_after(result)


def run_in_spite_of(server: Server, folder: Path, fault: Fault) -> dict[str, Any]:
    """Return what the store did when the fault occurred and it used another way."""
    result: dict[str, Any] = server.run("store", fault, folder=str(folder), driver="uring")
    assert result["error"] is None
    assert result["strikes"] > 0
    check_after(result)
    return result


def test_threads_replace_forbidden_io_uring_with_a_note(server: Server, tmp_path: Path) -> None:
    result = run_in_spite_of(server, tmp_path, Fault("ring_setup", errno.EPERM, times=ALWAYS))
    assert result["driver"] == "threads"
    assert "Operation not permitted" in result["notes"][0]


def test_failing_ring_raises_an_error_and_later_works_again(server: Server, tmp_path: Path) -> None:
    result = server.run("store", Fault("ring_enter", errno.EPERM, first=2), folder=str(tmp_path), driver="uring")
    assert result["error"]["type"] == "TransferError"
    assert "io_uring_enter" in result["error"]["message"]
    check_after(result)


def test_page_cache_replaces_missing_direct_io_with_a_note(server: Server, tmp_path: Path) -> None:
    result = run_in_spite_of(server, tmp_path, Fault("direct", errno.EINVAL, times=ALWAYS))
    assert "page cache" in result["notes"][0]


# Drive endurance


def test_lifetime_of_the_papers_example_is_307_days() -> None:
    """FlashNeuron, section 3.4: 3 DWPD for five years, 8,000 GB, 3.3 GB/s, half of it writes."""
    days = DriveWear(bytes_written=3_300_000_000, seconds=2, drive_nbytes=8000 * 10**9).lifetime_days
    assert int(days) == 307
    assert round(days * 24) == 7374


def test_drive_writes_per_day_of_busy_and_idle_drives() -> None:
    assert DriveWear(10**12, seconds=43_200, drive_nbytes=10**12).drive_writes_per_day == 2
    assert DriveWear(10**12, seconds=0, drive_nbytes=10**12).drive_writes_per_day == 0
    assert DriveWear(0, seconds=10, drive_nbytes=10**12).lifetime_days == float("inf")


def test_store_counts_its_writes(store: BlockStore) -> None:
    assert store.stats.lifetime_days == float("inf")
    write(store, 0, data := blob(MIB, 1))
    store.wait(0)
    assert data.nbytes == store.stats.bytes_written
    assert store.stats.drive_nbytes > MIB
    assert store.stats.drive_writes_per_day > 0
    assert store.stats.lifetime_days < float("inf")
