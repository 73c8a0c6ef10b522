"""A stand-in for kvikio over cuFile, which moves bytes between files and memory of the simulated accelerator.

It has the part of kvikio's interface that fastio uses. As cuFile does, its threads move bytes past the streams: they
wait for no work of a device, and none waits for them. Aligned transfers bypass the page cache. A write of part of a
page reads the page and writes all of it. As kvikio does, it copies less than ``gds_threshold`` bytes through host
memory, when the result is asked for.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import simulated
from fastio.transports import registry

_STARTED_SECONDS = 60.0


class CompatMode(enum.Enum):
    OFF = enum.auto()
    ON = enum.auto()
    AUTO = enum.auto()


class _Counts:
    """Transfers that were started and whose result was not asked for yet, and those that a thread runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.under_way = self.most_under_way = 0
        self.running = self.most_running = 0
        self.gate: threading.Barrier | None = None  # each transfer waits there before it moves a byte

    def start(self) -> None:
        with self._lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)

    def end(self) -> None:
        with self._lock:
            self.under_way -= 1

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            if self.gate is not None:
                self.gate.wait(_STARTED_SECONDS)
            yield
        finally:
            with self._lock:
                self.running -= 1


class IOFuture:
    """A transfer. Its result can be read once."""

    def __init__(self, wait: Callable[[], int]) -> None:
        self._wait: Callable[[], int] | None = wait
        counts.start()

    def get(self) -> int:
        wait, self._wait = self._wait, None
        assert wait is not None, "the result of a transfer was read already"
        try:
            return wait()
        finally:
            counts.end()


class CuFile:
    """A file, open with O_DIRECT and without."""

    def __init__(self, path: str, flags: str = "r") -> None:
        mode = {"r": os.O_RDONLY, "r+": os.O_RDWR}[flags]
        with _errors_as_text():
            self._file = os.open(path, mode)
            try:
                self._direct = os.open(path, mode | os.O_DIRECT)
            except OSError:
                os.close(self._file)
                raise

    def close(self) -> None:
        os.close(self._direct)
        os.close(self._file)

    def pread(self, memory: torch.Tensor, size: int, file_offset: int, task_size: int) -> IOFuture:
        return self._start(memory, size, file_offset, task_size, write=False)

    def pwrite(self, memory: torch.Tensor, size: int, file_offset: int, task_size: int) -> IOFuture:
        return self._start(memory, size, file_offset, task_size, write=True)

    def _start(self, memory: torch.Tensor, size: int, offset: int, task_size: int, *, write: bool) -> IOFuture:
        assert memory.device.type == "simulated"
        assert 0 < size <= task_size, "one task for each transfer: with several, others would run on after one fails"
        move = self._through_host if size < _settings["gds_threshold"] else self._directly
        arguments = (memory.data_ptr(), size, offset, write)  # as cuFile, it does not keep the memory
        if move == self._through_host:
            return IOFuture(lambda: move(*arguments))
        return IOFuture(_pool.submit(move, *arguments).result)

    def _directly(self, address: int, size: int, offset: int, write: bool) -> int:
        with counts.run():
            count = torch.ops.simulated.transfer_file(self._direct, self._file, address, size, offset, write)
        if count < 0:
            raise RuntimeError(f"cuFile error: {os.strerror(-count)}")
        return int(count)

    def _through_host(self, address: int, size: int, offset: int, write: bool) -> int:
        on_device = simulated.bytes_at(address, size)
        stream = torch.get_device_module("simulated").Stream(on_device.device)
        with _errors_as_text(), torch.get_device_module("simulated").stream(stream):
            if write:
                return os.pwrite(self._file, on_device.cpu().numpy(), offset)
            bounce = torch.empty(size, dtype=torch.uint8)
            count = os.preadv(self._file, [bounce.numpy()], offset)
            on_device[:count].copy_(bounce[:count])
            return count


@contextlib.contextmanager
def _errors_as_text() -> Iterator[None]:
    """kvikio reports system errors without their errno."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(f"POSIX error: {error.strerror}") from None


def _pool_of(threads: int) -> ThreadPoolExecutor:
    """A pool whose threads all run, so that a test which counts threads does not see them start."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="kvikio")
    started = threading.Barrier(threads)
    for waiting in [pool.submit(started.wait, _STARTED_SECONDS) for _ in range(threads)]:
        waiting.result()
    return pool


class _Set:
    """A setting that holds from now on, or in a ``with`` block."""

    def __init__(self, name: str, value: Any) -> None:
        self._before = name, get(name)
        _change(name, value)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        _change(*self._before)


def _change(name: str, value: Any) -> None:
    global _pool
    _settings[name] = value
    if name == "num_threads":
        _pool.shutdown()
        _pool = _pool_of(value)


def get(name: str) -> Any:
    return _settings[name]


def is_compat_mode_preferred() -> bool:
    return _settings["compat_mode"] is CompatMode.ON


_settings: dict[str, Any] = {"compat_mode": CompatMode.AUTO, "num_threads": 1, "gds_threshold": 16 << 10}
_pool = _pool_of(1)
defaults = SimpleNamespace(get=get, set=_Set, is_compat_mode_preferred=is_compat_mode_preferred)
cufile_driver = SimpleNamespace(properties=SimpleNamespace(is_gds_available=True))
counts = _Counts()


@contextlib.contextmanager
def installed() -> Iterator[Any]:
    """Make ``import kvikio`` find the stand-in, and the tool ``gds`` with it."""
    global counts
    counts = _Counts()
    kvikio = sys.modules[__name__]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in (("", kvikio), (".defaults", defaults), (".cufile_driver", cufile_driver)):
            patch.setitem(sys.modules, f"kvikio{name}", module)
        registry._tools.pop("gds", None)
        yield kvikio
    registry._tools.pop("gds", None)
    assert counts.under_way == 0, "the result of a transfer was not read"
