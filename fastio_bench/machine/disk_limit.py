"""Measures the disk's limit: the bandwidth of plain direct I/O, by fio or by fastio's uring transport.

The place of a file on a virtual disk can make it faster or slower to read. So the caller names the file to read: in a
comparison, the file that the tools load.
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
RING = "disk limit, own ring"  # measured in addition to fio's
_FIO = ("--name=limit", "--ioengine=io_uring", "--direct=1", "--output-format=json")
_FEW_FAULTS = 100  # a job with resident memory has a dozen; faulting in 64 MiB in fio's largest pages takes 500


class _Job(NamedTuple):
    """A job of fio: ``depth`` blocks of ``block`` bytes in flight. A last partial block is left out."""

    direction: str
    depth: int
    block: int
    options: tuple[str, ...]


_WRITE = _Job("write", 8, 4 << 20, ("--rw=write", "--fallocate=native", "--end_fsync=1"))
_OVERWRITE = _Job("write", 32, 1 << 20, ("--rw=write", "--fallocate=none", "--overwrite=1"))
_READ = _Job("read", 64, 1 << 20, ("--rw=read", "--readonly"))
_REGISTERED = "--fixedbufs"
# In memory of 4 KiB pages a transfer consists of many small pieces, which costs a third of a virtual disk's read
# bandwidth. This makes glibc (2.35 and newer) give fio's buffers huge pages, as fastio's own have.
_HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_HUGE_PAGE = 2 << 20


class Limit(Protocol):
    """Writes a new file of ``nbytes`` at ``path``, overwrites it or reads it, past the page cache.

    Overwriting and reading move the whole blocks of the file and return the time of ``nbytes`` at that rate. A new file
    is synced, an overwritten one is not.
    """

    name: str

    def write(self, path: Path, nbytes: int) -> Measured: ...

    def overwrite(self, path: Path, nbytes: int) -> Measured: ...

    def read(self, path: Path, nbytes: int) -> Measured: ...


def find() -> Limit:
    """fio if it is installed, else fastio's uring transport, and then the name says so."""
    return FioLimit() if fio() else RingLimit("fastio's uring transport (fio is not installed)")


def fio() -> bool:
    """Whether fio is installed."""
    return shutil.which("fio") is not None


def fresh_file(folder: Path, nbytes: int) -> Measured:
    """Write a file of ``nbytes`` into the folder, sync it and remove it, after waiting for an idle disk."""
    path = folder / "limit"
    os.sync()
    try:
        return find().write(path, nbytes)
    finally:
        path.unlink(missing_ok=True)


class FioLimit:
    """fio's io_uring engine with O_DIRECT. Times are fio's own, so its start is not counted.

    fio makes the bytes to write before its clock starts, but faults in the memory for reads while it reads. Memory that
    is registered with the ring is resident beforehand. If fio cannot register it, it reads without, and the way says
    so.
    """

    name = "fio, io_uring, direct"

    def __init__(self) -> None:
        self._refusal = ""  # why buffers are not registered

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
        name = str(path).replace(":", r"\:")  # fio separates file names by colons
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
    """fastio's uring transport, from and to resident memory, without checksums."""

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
    """``nbytes`` of resident memory, in huge pages if the kernel has them."""
    return untouched(nbytes).fill_(1)


def untouched(nbytes: int) -> torch.Tensor:
    """``nbytes`` of memory that is not faulted in, aligned to a huge page, in huge pages if the kernel has them."""
    import torch

    memory = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % _HUGE_PAGE
    return whole[begin : begin + nbytes]


@contextlib.contextmanager
def _fresh(path: Path) -> Iterator[None]:
    """Remove the file first, and if the block fails: reading a partly written file would not measure the disk."""
    path.unlink(missing_ok=True)
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _whole(path: Path, block: int) -> int:
    """The file's length in whole blocks, in bytes. Raises ValueError if there is none."""
    size = path.stat().st_size // block * block
    if not size:
        raise ValueError(f"{path}: the file has no block of {block} bytes")
    return size
