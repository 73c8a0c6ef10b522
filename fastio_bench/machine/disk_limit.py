"""The device's limit: what direct I/O reaches here when nothing but bytes is moved.

A file's place on a virtual disk can make it faster or slower to read than another. So a read is of a file that the
caller names: for a comparison, the very file that the tools load.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, Span, WriteRequest
from fastio_bench.harness import page_cache
from fastio_bench.harness.children import completed
from fastio_bench.harness.rounds import Measured

if TYPE_CHECKING:
    import torch

TOOL = "disk limit"
RING = "disk limit, own ring"  # beside fio's, where both are measured
_FIO = ("--name=limit", "--ioengine=io_uring", "--direct=1", "--output-format=json")
_FEW_FAULTS = 100  # a job that has its memory takes a dozen; 64 MiB in the largest pages that fio gets, 500


class _Job(NamedTuple):
    """What fio does: so many blocks of so many bytes in flight at once. What does not fill a block it leaves out."""

    direction: str
    depth: int
    block: int
    options: tuple[str, ...]


_WRITE = _Job("write", 8, 4 << 20, ("--rw=write", "--fallocate=native", "--end_fsync=1"))
_OVERWRITE = _Job("write", 32, 1 << 20, ("--rw=write", "--fallocate=none", "--overwrite=1"))
_READ = _Job("read", 64, 1 << 20, ("--rw=read", "--readonly"))
_REGISTERED = "--fixedbufs"
# In memory of 4 KiB pages a transfer is many small pieces, which costs a third of what a virtual disk reads: glibc
# (2.35 and newer) is asked to give fio's buffers huge pages, as fastio's own have.
_HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_HUGE_PAGE = 2 << 20


class Limit(Protocol):
    """Writes a fresh file of ``nbytes`` at ``path``, or overwrites or reads what is there; past the page cache.

    The latter two move the whole blocks of the file and tell the time that ``nbytes`` take at that rate. A fresh file
    is synced; one that is overwritten is not.
    """

    name: str

    def write(self, path: Path, nbytes: int) -> Measured: ...

    def overwrite(self, path: Path, nbytes: int) -> Measured: ...

    def read(self, path: Path, nbytes: int) -> Measured: ...


def find() -> Limit:
    """fio where it is installed, else fastio's own uring transport (and then the name says so)."""
    return FioLimit() if fio() else RingLimit("fastio's uring transport (fio is not installed)")


def fio() -> bool:
    """Whether fio is installed."""
    return shutil.which("fio") is not None


def fresh_file(folder: Path, nbytes: int) -> Measured:
    """A file of so many bytes written in the folder, synced, and removed; the disk is idle before."""
    path = folder / "limit"
    os.sync()
    try:
        return find().write(path, nbytes)
    finally:
        path.unlink(missing_ok=True)


class FioLimit:
    """fio's io_uring engine with O_DIRECT; times are fio's own, so its start is not counted.

    What fio writes it makes before its clock starts, but it touches memory to read into as the bytes come. Registered
    with the ring, that memory is there beforehand. Where fio cannot register it, it reads without, and the way says so.
    """

    name = "fio, io_uring, direct"

    def __init__(self) -> None:
        self._refusal = ""  # why buffers are not registered here

    def write(self, path: Path, nbytes: int) -> Measured:
        with _fresh(path):
            return self._run(path, -(-nbytes // _WRITE.block) * _WRITE.block, _WRITE, nbytes)

    def overwrite(self, path: Path, nbytes: int) -> Measured:
        return self._run(path, _whole(path, _OVERWRITE.block), _OVERWRITE, nbytes)

    def read(self, path: Path, nbytes: int) -> Measured:
        size, refusal = _whole(path, _READ.block), self._refusal
        if not refusal:
            page_cache.drop(path)
            try:
                return self._run(path, size, _READ, nbytes, _REGISTERED)
            except OSError as error:
                refusal = f"not registered, {error}; ulimit -l may be too low"
        page_cache.drop(path)
        measured = self._run(path, size, _READ, nbytes)
        self._refusal = refusal
        return replace(measured, way=f"{measured.way}; {refusal}")

    def _run(self, path: Path, size: int, job: _Job, nbytes: int, *more: str) -> Measured:
        name = str(path).replace(":", r"\:")  # a colon parts one file's name from the next
        shape = (f"--iodepth={job.depth}", f"--bs={job.block}", f"--filename={name}", f"--size={size}")
        child = completed(["fio", *_FIO, *job.options, *more, *shape], env={**os.environ, **_HUGE})
        if child.returncode:
            said = (child.stderr or child.stdout.partition("{\n")[0]).strip().splitlines()[-1:] or ["nothing"]
            raise OSError(f"fio ended with status {child.returncode} and said: {said[0]}")
        result = json.loads(child.stdout[child.stdout.index("{") :])["jobs"][0]
        moved = result[job.direction]
        if moved["io_bytes"] != size:
            raise OSError(f"fio moved {moved['io_bytes']} bytes of {size}")
        seconds = nbytes / moved["bw_bytes"]
        way = f"{self.name}, {job.depth} x {job.block >> 20} MiB"
        if result["minf"] > _FEW_FAULTS:
            way += ", its memory faulted in while timed"
        return Measured(seconds, (result["usr_cpu"] + result["sys_cpu"]) / 100 * seconds, way=way)


class RingLimit:
    """fastio's uring transport, from and to memory that is resident; asks for no checksums."""

    def __init__(self, name: str = "fastio's uring transport") -> None:
        self.name = name

    def write(self, path: Path, nbytes: int) -> Measured:
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with _fresh(path):
            return self._move(path, size, os.O_RDWR | os.O_CREAT, nbytes)

    def overwrite(self, path: Path, nbytes: int) -> Measured:
        return self._move(path, _whole(path, mmap.PAGESIZE), os.O_RDWR, nbytes)

    def read(self, path: Path, nbytes: int) -> Measured:
        page_cache.drop(path)
        return self._move(path, _whole(path, mmap.PAGESIZE), os.O_RDONLY, nbytes)

    def _move(self, path: Path, size: int, flags: int, nbytes: int) -> Measured:
        transport, memory = registry.get("uring"), resident(size)
        address = memory.data_ptr()
        extents = (Extent(0, size, address, checksum=False, owner=memory, name="limit"),)
        fd = os.open(path, flags, 0o600)
        try:
            cpu, wall = time.process_time(), time.perf_counter()
            if flags & os.O_CREAT:
                os.posix_fallocate(fd, 0, size)
            if flags & os.O_RDWR:
                moved = transport.write(WriteRequest(str(path), fd, size, extents))
                if flags & os.O_CREAT:
                    os.fsync(fd)
            else:
                moved = transport.read(ReadRequest(str(path), fd, size, extents, Span(0, size, address)))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        finally:
            os.close(fd)
        if moved.route != "direct":
            raise OSError(f"{path}: the bytes went by {moved.route}, not direct: {'; '.join(moved.notes)}")
        share = nbytes / size
        return Measured(wall * share, cpu * share, way=self.name)


def resident(nbytes: int) -> torch.Tensor:
    """So many bytes of memory that is there already, in huge pages where the kernel has them."""
    return untouched(nbytes).fill_(1)


def untouched(nbytes: int) -> torch.Tensor:
    """So many bytes of memory that comes as it is touched, in huge pages where the kernel has them, at one's begin."""
    import torch

    memory = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % _HUGE_PAGE
    return whole[begin : begin + nbytes]


@contextlib.contextmanager
def _fresh(path: Path) -> Iterator[None]:
    """The file is made inside, or is not there: reading half a file, or room never written, would tell of no disk."""
    path.unlink(missing_ok=True)
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _whole(path: Path, block: int) -> int:
    """The file's length in whole blocks; ValueError if there is none."""
    size = path.stat().st_size // block * block
    if not size:
        raise ValueError(f"{path}: the file has no block of {block} bytes")
    return size
