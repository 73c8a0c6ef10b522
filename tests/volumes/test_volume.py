"""Volumes on files: any history compared with a dict, readers beside a writer, and each kind of error."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
from pathlib import Path

import pytest

from fastio.errors import CorruptFileError, TransferError, VolumeError, VolumeFullError, VolumeInUseError
from fastio.volumes import Volume
from faults import Server
from power_cuts import FragileDevice

BLOCK = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Volume.create(tmp_path / "volume", 1 << 20).close()
    return tmp_path / "volume"


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes([old[0] ^ 1]))


def test_the_size_of_a_new_volume_may_be_a_text(tmp_path: Path) -> None:
    with Volume.create(tmp_path / "volume", "1MiB") as volume:
        assert (tmp_path / "volume").stat().st_size == 1 << 20
        assert volume.nbytes < 1 << 20
    for wrong in ("50%", 2.5, "0.5"):
        with pytest.raises(ValueError, match=r"nbytes=.* is no size"):
            Volume.create(tmp_path / "other", wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("histories", [40, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_any_history_agrees_with_a_dict(histories: int) -> None:
    full = 0
    for seed in range(histories):
        chance = random.Random(seed)
        device, model = FragileDevice(bytes(chance.randrange(30, 90) * BLOCK)), dict[str, bytes]()
        volume = Volume.create_on(device, chance.randrange(4, 12))
        for _ in range(60):
            name, act = f"{chance.choice('abcdefgh')}{'x' * chance.randrange(2)}", chance.random()
            if act < 0.6:
                data = chance.randbytes(chance.choice((0, chance.randrange(9_000), chance.randrange(120_000))))
                free = volume.free_nbytes
                try:
                    volume.write(name, data)
                    model[name] = data
                except VolumeFullError:
                    full += 1
                    assert len(data) > free or len(model) >= 3
                    assert volume.free_nbytes == free
            elif act < 0.8 and name in model:
                volume.rm(name)
                del model[name]
            elif act < 0.8:
                with pytest.raises(FileNotFoundError):
                    volume.rm(name)
            else:
                volume = Volume(device, True)
            assert [entry.name for entry in volume.ls()] == sorted(model), seed
            used = sum(-(-len(data) // BLOCK) * BLOCK for data in model.values())
            assert volume.free_nbytes == volume.nbytes - used, seed
        assert {name: volume.read(name) for name in model} == model, seed
    assert full > histories / 10


def test_objects_are_written_in_sequence_and_wrap_around() -> None:
    volume = Volume.create_on(FragileDevice(bytes((10 + 100) * BLOCK)), 4)
    for name in "abc":
        volume.write(name, bytes(30 * BLOCK))
    volume.rm("a")
    volume.write("d", bytes(10 * BLOCK))  # behind c, where 10 blocks are left, and not in the place of a
    volume.rm("b")
    volume.write("e", bytes(45 * BLOCK))
    firsts = {entry.name: [run.first for run in entry.runs] for entry in volume.ls()}
    assert firsts == {"c": [70], "d": [100], "e": [10]}


def test_an_object_lies_in_pieces_where_no_free_run_is_long_enough() -> None:
    volume = Volume.create_on(FragileDevice(bytes((34 + 40) * BLOCK)), 16)
    for number in range(10):
        volume.write(str(number), bytes(4 * BLOCK))
    for number in range(0, 10, 2):
        volume.rm(str(number))
    data = random.Random(0).randbytes(18 * BLOCK - 7)
    volume.write("pieces", data)
    assert len(volume.find("pieces").runs) == 5
    assert volume.read("pieces") == data
    with pytest.raises(VolumeFullError, match=r"more needs 12 KiB \(12,288 bytes\), 8 KiB \(8,192 bytes\) are free"):
        volume.write("more", bytes(3 * BLOCK))


def test_what_was_written_is_there_when_the_file_is_opened_again(path: Path) -> None:
    with Volume.open(path, write=True) as volume:
        volume.write("a/b.pt", b"1" * 10_000)
    with Volume.open(f"file:{path}") as volume:
        assert volume.read("a/b.pt") == b"1" * 10_000


def test_there_is_one_writer(path: Path) -> None:
    with Volume.open(path, write=True) as writer:
        with pytest.raises(VolumeInUseError, match="another writer has it; wait for its end"):
            Volume.open(path, write=True)
        with pytest.raises(VolumeInUseError, match=r"another writer has it after 0\.05 s"):
            Volume.open(path, write=True, wait_seconds=0.05)
        writer.write("a", b"1")
        with Volume.open(path) as reader:
            assert reader.read("a") == b"1"
            with pytest.raises(VolumeError, match="it is open for reading; open it with write=True"):
                reader.write("a", b"2")
            with pytest.raises(VolumeError, match="it is open for reading"):
                reader.rm("a")
    Volume.open(path, write=True).close()


def test_a_forked_process_neither_keeps_the_lock_nor_releases_it(path: Path) -> None:
    writer = Volume.open(path, write=True)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the parent closes the pipe
        os._exit(0)
    try:
        writer.close()
        Volume.open(path, write=True).close()
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(child, 0)
    with Volume.open(path, write=True) as writer:
        child = os.fork()
        if not child:
            writer.close()
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(VolumeInUseError):
            Volume.open(path, write=True)


def test_a_reader_gets_no_object_that_was_replaced_meanwhile(path: Path) -> None:
    with Volume.open(path, write=True) as writer, Volume.open(path) as reader:
        writer.write("a", b"1" * 9000)
        with pytest.raises(FileNotFoundError):
            reader.find("a")  # it sees the directory as it was when it was opened
        reader.refresh()
        writer.write("b", b"2" * 9000)
        assert reader.read("a") == b"1" * 9000
        writer.write("a", b"3" * 9000)
        with pytest.raises(VolumeError, match="another process has replaced it while it was read: read it again"):
            reader.read("a")
        assert reader.read("a") == b"3" * 9000
        writer.rm("b")
        for number in range(40):  # the journal is compacted meanwhile, and a new object may have old numbers
            writer.write("c", bytes(number))
        writer.write("b", b"4")
        entry = reader.find("a")
        writer.rm("a")
        with pytest.raises(VolumeError, match="has removed it"):
            reader.check_unchanged(entry)


def test_an_existing_file_is_no_place_for_a_new_volume(path: Path) -> None:
    with pytest.raises(FileExistsError):
        Volume.create(path, 1 << 20)
    with pytest.raises(ValueError, match=r"a volume needs at least 140 KiB .143,360 bytes., got 4 KiB"):
        Volume.create(path.parent / "small", 4096)
    assert os.listdir(path.parent) == ["volume"]


@pytest.mark.parametrize(("call", "code"), [("write", errno.EIO), ("sync", errno.EIO), ("allocate", errno.ENOSPC)])
def test_a_volume_that_cannot_be_made_leaves_no_file(server: Server, tmp_path: Path, call: str, code: int) -> None:
    results = server.run("new_volume", path=str(tmp_path / "new"), call=call, effect=code)
    assert results
    for result in results:
        assert result["error"]["errno"] == code
        assert "FastIOError" in result["error"]["bases"]
        assert result["left"] == []


def test_what_is_no_volume_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"something else".ljust(1 << 16))
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(VolumeError, match=r"file: it is no volume: it begins with b'somethin', expected b'FASTIOVO'"):
        Volume.open(tmp_path / "file")
    with pytest.raises(VolumeError, match=r"empty: it is no volume: it has 0 bytes"):
        Volume.open(tmp_path / "empty")
    with pytest.raises(VolumeError, match="expected a regular file or a block device"):
        Volume.open("/dev/null")
    with pytest.raises(FileNotFoundError):
        Volume.open(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        Volume.open(tmp_path, write=True)


def test_names_are_checked(path: Path) -> None:
    with Volume.open(path, write=True) as volume:
        volume.write("é" * 511, b"1")
        assert volume.read("é" * 511) == b"1"
        with pytest.raises(VolumeError, match="has 1024 bytes, expected at most 1023: choose a shorter one"):
            volume.write("é" * 512, b"1")
        with pytest.raises(VolumeError, match="expected the name of an object behind the volume's"):
            volume.write("", b"1")
        with pytest.raises(VolumeError, match="is no text that UTF-8 has"):
            volume.write("\ud800", b"1")
        volume.write("step-100.pt", b"1")
        with pytest.raises(FileNotFoundError, match=r"no object 'step-10\.pt'; alike: 'step-100\.pt'"):
            volume.read("step-10.pt")


def test_either_superblock_suffices_and_a_writer_mends_the_other(path: Path) -> None:
    with Volume.open(path, write=True) as volume:
        volume.write("a", b"1")
    whole = path.read_bytes()
    for copy in (0, 1):
        flip(path, copy * BLOCK + 30)
        with Volume.open(path) as volume:
            assert volume.read("a") == b"1"
        assert path.read_bytes() != whole
        Volume.open(path, write=True).close()
        assert path.read_bytes() == whole
    flip(path, 30)
    flip(path, BLOCK + 30)
    with pytest.raises(
        CorruptFileError, match=r"'superblock': both copies are damaged: got the CRC-32 \w+, expected \w+"
    ) as e:
        Volume.open(path)
    assert "at offset 0; got" in str(e.value)
    assert "at offset 4096" in str(e.value)


def test_a_damaged_journal_is_named(path: Path) -> None:
    with Volume.open(path, write=True) as volume:
        for name in "abc":
            volume.write(name, b"1")
    flip(path, 3 * BLOCK + 90)
    with pytest.raises(CorruptFileError, match=r"journal entry '1': got the CRC-32 \w+, expected \w+, at offset 12288"):
        Volume.open(path)


def test_a_file_that_was_cut_short_is_named(path: Path) -> None:
    os.truncate(path, 1 << 19)
    with pytest.raises(
        CorruptFileError, match=r"the volume has 1 MiB .*, got a device of 512 KiB .*: it was cut short"
    ):
        Volume.open(path)


def test_a_failed_journal_write_needs_a_new_start(path: Path) -> None:
    with Volume.open(path, write=True) as volume:
        volume.write("a", b"1")
        writes = volume.device.write

        def fails(offset: int, data: bytes | memoryview) -> None:
            if offset < 34 * BLOCK:
                raise TransferError(5, "write", volume.name, offset)
            writes(offset, data)

        volume.device.write = fails  # type: ignore[method-assign]
        with pytest.raises(TransferError, match="write failed at offset 12288"):
            volume.write("b", b"1")
        volume.device.write = writes  # type: ignore[method-assign]
        with pytest.raises(VolumeError, match="an earlier write to its journal failed; close it and open it again"):
            volume.write("c", b"1")
    with Volume.open(path, write=True) as volume:
        volume.write("c", b"1")
        assert [entry.name for entry in volume.ls()] == ["a", "c"]


def test_the_journal_has_room_for_so_many_objects() -> None:
    volume = Volume.create_on(FragileDevice(bytes(40 * BLOCK)), 5)
    for name in "abcd":
        volume.write(name, b"")
    with pytest.raises(VolumeFullError, match="it holds 4 objects, and its journal has room for 4"):
        volume.write("e", b"")
    for number in range(20):
        volume.write("d", bytes(number))
    volume.rm("a")
    volume.write("e", b"")


def test_errors_survive_pickling() -> None:
    for error in (VolumeInUseError("v", 1.5), VolumeFullError("v", "it is full")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_a_closed_volume_touches_no_file_that_has_its_descriptor_by_now(path: Path, tmp_path: Path) -> None:
    volume = Volume.open(path, write=True)
    volume.write("a", b"a")
    volume.close()
    content = bytes(1 << 20)
    with contextlib.ExitStack() as stack:
        for number in range(20):
            other = stack.enter_context(open(tmp_path / f"other-{number}", "w+b"))
            other.write(content)
            other.flush()
        with pytest.raises(VolumeError, match="this volume is closed: open it again"):
            volume.write("b", b"b" * 9000)
        with pytest.raises(VolumeError, match="this volume is closed: open it again"):
            volume.read("a")
    assert all((tmp_path / f"other-{number}").read_bytes() == content for number in range(20))
