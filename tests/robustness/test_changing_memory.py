"""Saves of memory that another thread changes meanwhile: the file's checksums still match its bytes."""

from __future__ import annotations

import dataclasses
import itertools
import mmap
import os
import pickle
import threading
import types
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import LoadPlan

import fastio
from fastio.distributed import Reader, Writer
from fastio.engine import checksums, record_checksums
from fastio.engine.save import write_layout
from fastio.files.atomic_file import AtomicFile
from fastio.formats.detect import PT
from fastio.formats.pt import writer
from fastio.transports import registry
from fastio.transports.transport import WriteRequest

TOOLS = ["uring", "posix", "torch", "numpy", "memory"]
NBYTES = 24 << 20
SAVES = 4


@contextmanager
def changing(aligned: bool = False) -> Iterator[dict[str, Any]]:
    """A state with two tensors that another thread keeps changing, mostly without Python's lock.

    If the large one is ``aligned`` to a page, direct I/O can write it without a copy.
    """
    large, small = torch.zeros(NBYTES, dtype=torch.uint8), torch.zeros(300)
    if aligned:
        large = torch.frombuffer(mmap.mmap(-1, NBYTES), dtype=torch.uint8)
    ended = threading.Event()

    def change() -> None:
        for number in itertools.count(1):
            if ended.is_set():
                return
            large.fill_(number % 256)
            small.fill_(number)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield {"large": large, "small": small, "odd": torch.arange(30001), "step": 3}
    finally:
        ended.set()
        thread.join()


def check(path: Path) -> None:
    """Check that all checksums of a ``.pt`` file, in its data descriptors too, match its bytes."""
    assert fastio.verify(path).checksummed
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for info in archive.infolist():
            lengths = data[info.header_offset + 26 : info.header_offset + 30]
            name, extra = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
            end = info.header_offset + 30 + name + extra + info.file_size
            if info.file_size:
                assert data[end : end + 8] == b"PK\x07\x08" + info.CRC.to_bytes(4, "little"), info.filename
    assert torch.equal(fastio.load(path)["odd"], torch.arange(30001))


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("tool", TOOLS)
def test_saves_of_changing_memory_have_valid_checksums(tmp_path: Path, tool: str, aligned: bool) -> None:
    path = tmp_path / "a.pt"
    with changing(aligned) as state:
        for _ in range(SAVES):
            result = fastio.save(state, path, policy=tool, durable=False)
            assert (result.tool, result.verified) == (tool, True)
            check(path)


def test_saves_by_torch_of_changing_memory_have_valid_checksums(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    module = types.SimpleNamespace(**{name: getattr(pickle, name) for name in dir(pickle) if name[0] != "_"})
    module.__name__ = "mine"
    with changing() as state:
        for _ in range(SAVES):
            assert fastio.save(state, path, pickle_module=module, durable=False).route == "library"
            check(path)


@pytest.mark.parametrize("tool", TOOLS)
def test_layouts_of_changing_memory_have_valid_checksums(tmp_path: Path, tool: str) -> None:
    """Checkpoints are written like this: by the tool's own transport, even for tools that replace a library's save."""
    path = tmp_path / "a.pt"
    with changing() as state:
        for _ in range(SAVES):
            layout = writer.layout(state, str(path))
            with AtomicFile(str(path)) as new:
                _, values = write_layout(layout, new, PT, tool, True, None)
            check(path)
            with zipfile.ZipFile(path) as archive:
                found = {info.filename.partition("/")[2]: info.CRC for info in archive.infolist()}
            for extent, value in zip(layout.extents, values, strict=True):
                assert not extent.checksum or found[extent.name] == value


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:torch.distributed is unavailable")
@pytest.mark.parametrize("tool", TOOLS)
def test_distributed_checkpoints_of_changing_memory_verify(tmp_path: Path, tool: str) -> None:
    with changing() as state:
        for number in range(SAVES):
            dcp.save(state, storage_writer=Writer(tmp_path / str(number), policy=tool, durable=False))
            loaded = {name: torch.zeros_like(value) for name, value in state.items() if name != "step"}
            with fastio.record() as transfers:
                dcp.load(loaded, storage_reader=Reader(tmp_path / str(number)))
            assert all(transfer.verified for transfer in transfers)
            for planner in map(Part, (0, NBYTES // 2 + 7)):
                dcp.load({"large": loaded["large"]}, storage_reader=Reader(tmp_path / str(number)), planner=planner)


class Part(dcp.DefaultLoadPlanner):
    """Loads a third of each tensor, from an index on, as a rank of another number of ranks does."""

    def __init__(self, begin: int) -> None:
        super().__init__()
        self._begin = torch.Size([begin])

    def create_local_plan(self) -> LoadPlan:
        part = {"dest_offsets": self._begin, "storage_offsets": self._begin, "lengths": torch.Size([NBYTES // 3])}
        return LoadPlan([dataclasses.replace(item, **part) for item in super().create_local_plan().items])


def test_reseal_archive_repairs_checksums_of_torchs_file(tmp_path: Path) -> None:
    """Without another thread: the test changes bytes of the file that torch wrote."""
    path = tmp_path / "a.pt"
    torch.save({"large": torch.zeros(3 << 20), "odd": torch.arange(30001), "empty": torch.empty(0)}, path)
    with zipfile.ZipFile(path) as archive:
        (info,) = (info for info in archive.infolist() if info.filename.endswith("/data/0"))
    with path.open("r+b") as file:
        fd, size = file.fileno(), path.stat().st_size
        assert record_checksums.reseal_archive(str(path), fd, size) == ()
        os.pwrite(fd, b"changed", info.header_offset + 1_000_000)
        with pytest.raises(fastio.CorruptFileError):
            fastio.verify(path)
        (note,) = record_checksums.reseal_archive(str(path), fd, size)
        assert note.startswith("one checksum")
        assert record_checksums.reseal_archive(str(path), fd, size) == ()
    check(path)
    assert fastio.load(path)["large"].count_nonzero() > 0


@pytest.mark.parametrize("changed", [(), ("large",), ("large", "odd")])
def test_reseal_repairs_checksums_of_tools_that_compute_none(tmp_path: Path, changed: tuple[str, ...]) -> None:
    path = tmp_path / "a.pt"
    state = {"large": torch.zeros(3 << 20), "odd": torch.arange(30001), "other": torch.ones(1 << 16)}
    layout = writer.layout(state, str(path))
    values, _ = checksums.seal(layout)
    for name in changed:
        state[name][7] = 9
    with path.open("w+b") as file:
        file.truncate(layout.size)
        registry.get("memory").write(WriteRequest(str(path), file.fileno(), layout.size, layout.extents))
        state["odd"][7] = 7
        notes = record_checksums.reseal(layout, values, str(path), file.fileno())
    assert len(notes) == bool(changed)
    assert fastio.verify(path).checksummed
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        found = {info.filename.partition("/")[2]: info.CRC for info in archive.infolist()}
    assert all(found[e.name] == value for e, value in zip(layout.extents, values, strict=True) if e.checksum)
