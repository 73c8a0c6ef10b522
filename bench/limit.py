"""The device's limit: what direct I/O reaches here when nothing but bytes is moved."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Protocol

from fastio import registry
from fastio.bench import cold
from fastio.bench.rounds import Measured
from fastio.transport import Extent, ReadRequest, Span, WriteRequest

TOOL = "disk limit"
_FIO_BLOCK = 4 << 20  # fio leaves out what does not fill a block
_FIO_WRITE = ("--rw=write", "--bs=1M", "--iodepth=4", "--fallocate=native", "--end_fsync=1")
_FIO_READ = ("--rw=read", "--bs=4M", "--iodepth=32")


class Limit(Protocol):
    """Writes a fresh file of ``nbytes`` at ``path``, and reads it back, past the page cache."""

    name: str

    def write(self, path: Path, nbytes: int) -> Measured: ...

    def read(self, path: Path, nbytes: int) -> Measured: ...


def find() -> Limit:
    """fio where it is installed, else fastio's own uring transport (and then the name says so)."""
    return FioLimit() if shutil.which("fio") else UringLimit()


class FioLimit:
    """fio's io_uring engine with O_DIRECT; times are fio's own, so its start is not counted."""

    name = "fio, io_uring, direct"

    def write(self, path: Path, nbytes: int) -> Measured:
        path.unlink(missing_ok=True)
        return self._run(path, nbytes, _FIO_WRITE, "write")

    def read(self, path: Path, nbytes: int) -> Measured:
        return self._run(path, nbytes, _FIO_READ, "read")

    def _run(self, path: Path, nbytes: int, options: tuple[str, ...], direction: str) -> Measured:
        size = -(-nbytes // _FIO_BLOCK) * _FIO_BLOCK
        job = ("--name=limit", f"--filename={path}", f"--size={size}", "--ioengine=io_uring", "--direct=1")
        command = ["fio", *job, *options, "--output-format=json"]
        child = subprocess.run(command, check=False, capture_output=True, text=True)
        if child.returncode:
            said = (child.stderr or child.stdout).strip().splitlines()[-1:] or ["nothing"]
            raise OSError(f"fio ended with status {child.returncode} and said: {said[0]}")
        result = json.loads(child.stdout[child.stdout.index("{") :])["jobs"][0]
        moved = result[direction]
        if moved["io_bytes"] != size:
            raise OSError(f"fio moved {moved['io_bytes']} bytes of {size}")
        seconds = nbytes / moved["bw_bytes"]
        return Measured(seconds, (result["usr_cpu"] + result["sys_cpu"]) / 100 * seconds, way=self.name)


class UringLimit:
    """fastio's uring transport, from and to memory that is resident and aligned; asks for no checksums."""

    name = "fastio's uring transport (fio is not installed)"

    def write(self, path: Path, nbytes: int) -> Measured:
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        path.unlink(missing_ok=True)
        return self._move(path, nbytes, os.O_RDWR | os.O_CREAT)

    def read(self, path: Path, nbytes: int) -> Measured:
        cold.drop(path)
        return self._move(path, path.stat().st_size, os.O_RDONLY)

    def _move(self, path: Path, nbytes: int, flags: int) -> Measured:
        import torch

        transport = registry.get("uring")
        memory = torch.zeros(nbytes + mmap.PAGESIZE, dtype=torch.uint8)
        address = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        extents = (Extent(0, nbytes, address, checksum=False, owner=memory, name="limit"),)
        fd = os.open(path, flags, 0o600)
        try:
            cpu, wall = time.process_time(), time.perf_counter()
            if flags & os.O_CREAT:
                os.posix_fallocate(fd, 0, nbytes)
                moved = transport.write(WriteRequest(str(path), fd, nbytes, extents))
                os.fsync(fd)
            else:
                moved = transport.read(ReadRequest(str(path), fd, nbytes, extents, Span(0, nbytes, address)))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        finally:
            os.close(fd)
        if moved.route != "direct":
            raise OSError(f"{path}: the bytes went by {moved.route}, not direct: {'; '.join(moved.notes)}")
        return Measured(wall, cpu, way=self.name)
