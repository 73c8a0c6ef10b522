"""One blob in a file without a name, moved by tools that a dictionary chooses (Fastensor, sections 4 and 5)."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fastio import devices
from fastio._native import Descriptor, allocate
from fastio.engine.executor import Execution, Outcome, call_transport, execute
from fastio.engine.plan import TransferPlan
from fastio.engine.tool_selection import plan_transfer
from fastio.errors import CorruptFileError, FastIOError, TransferError
from fastio.offload.stores.size_times import SizeTimes
from fastio.offload.stores.store_errors import BLOCK
from fastio.offload.stores.store_places import open_unnamed
from fastio.results import Transfer
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import LOAD, SAVE, Extent, ReadRequest, Span, TransportResult, WriteRequest

FORMAT = "raw"  # the files hold only the bytes; a format of their own keeps their times out of other dictionaries


class Tally:
    """What the files of a store did, and the times of it; any thread adds. Bytes are whole blocks."""

    def __init__(self, mode: str | None) -> None:
        self.written = self.read = 0
        self.open = 0  # files
        self.tools: Counter[str] = Counter()  # blobs by writer
        self.routes: Counter[str] = Counter()  # transfers by route
        self.notes: Counter[str] = Counter()
        self._mode = mode  # None: the policy names a tool, or learns nothing
        self._times: dict[str, SizeTimes] = {}
        self.lock = threading.RLock()

    def times(self, device: str) -> SizeTimes | None:
        """Return the times of a device, which are its own; None if the policy alone judges. The lock is held."""
        return None if self._mode is None else self._times.setdefault(device, SizeTimes(self._mode))


class ToolFile:
    """A blob of ``nbytes`` in a file of ``folder``. ``policy`` chooses its writer, which also reads it back."""

    def __init__(self, folder: str, index: int, nbytes: int, policy: Any, tally: Tally) -> None:
        self.nbytes = nbytes
        self._folder = folder
        self._index = index
        self._policy = policy
        self._tally = tally
        self._descriptor: Descriptor | None = None
        self._tools: tuple[str, ...] = ()  # to read it with, its writer first

    def fill(self, address: int, device: torch.device, fence: Any) -> None:
        """Write the file from memory on a device, once the event ``fence`` has happened. Raises TransferError."""
        with _ordered(device, fence):
            began = time.perf_counter()
            self._descriptor = self._create()
            if self.nbytes == 0:
                return
            fd = self._descriptor.fileno()
            extent = Extent(0, self.nbytes, address, False, str(device))
            request = WriteRequest(self._folder, fd, self.nbytes, [extent], (), False)
            request.ordered = True

            def write(tool: str) -> TransportResult:
                os.ftruncate(fd, 0)  # of what a tool wrote before it refused
                allocate(fd, self.nbytes)
                return call_transport(tool, request)

            def work(execution: Execution) -> Outcome[tuple[str, ...]]:
                moved = self._move("write", execution, write)
                return Outcome(moved, (execution.tool, *(tool for tool in execution.order if tool != execution.tool)))

            plan = self._plan(SAVE, device)
            done, self._tools = execute(plan, work, began, tools=self._order(plan))
            self._learn("w", plan, done)
        with self._tally.lock:
            self._tally.tools[self._tools[0]] += 1
            self._tally.written += blocks(self.nbytes)

    def fetch(self, address: int, nbytes: int, device: torch.device, fence: Any) -> None:
        """Read the file's first ``nbytes`` into memory on a device, once ``fence`` has happened. May be retried."""
        assert self._descriptor is not None, "it was filled"
        if nbytes == 0:
            return
        with _ordered(device, fence):
            began = time.perf_counter()
            # A tool may fill memory up to the end of the page that a span ends in.
            whole = device.type == "cpu" and address % BLOCK == 0 and nbytes % BLOCK == 0
            span = Span(0, nbytes, address) if whole else None
            extent = Extent(0, nbytes, address, False, str(device))
            request = ReadRequest(self._folder, self._descriptor.fileno(), self.nbytes, [extent], span)
            request.ordered = True

            def work(execution: Execution) -> Outcome[None]:
                moved = self._move("read", execution, lambda tool: call_transport(tool, request))
                return Outcome(moved, None, counts=nbytes == self.nbytes)

            plan = self._plan(LOAD, device)
            done, _ = execute(plan._replace(tools=self._tools[:1]), work, began, tools=self._tools)
            if nbytes == self.nbytes:
                self._learn("r", plan, done)
        with self._tally.lock:
            self._tally.read += blocks(nbytes)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            descriptor.close()
            with self._tally.lock:
                self._tally.open -= 1

    def _create(self) -> Descriptor:
        tally = self._tally
        try:
            made = open_unnamed(self._folder, os.O_RDWR)
        except OSError as error:
            operation = f"making a file for index {self._index}"
            if error.errno == errno.EMFILE:
                operation += f" beside {tally.open} others (each is an open file)"
            raise TransferError(error.errno or errno.EIO, operation, self._folder) from None
        with tally.lock:
            tally.open += 1
        return made

    def _plan(self, kind: str, device: torch.device) -> TransferPlan:
        # Whether the page cache holds the file follows from the tool that wrote it. As a part of the key it would
        # separate the tools, and WRDic needs all of them in one place: hence resident=False.
        name = f"index {self._index} of {self._folder}"
        return plan_transfer(kind, name, FORMAT, {device}, self.nbytes, 1, self._policy, "object", folder=self._folder)

    def _order(self, plan: TransferPlan) -> tuple[str, ...]:
        """Return the tools by their times at this size; none where the policy chooses."""
        context = plan.context

        def expected() -> dict[str, float]:
            return plan.policy.ask(SAVE, self._folder, self.nbytes).times(context, self.nbytes, plan.tools)

        with self._tally.lock:
            times = self._tally.times(context.device)
            return () if times is None else times.order(self.nbytes, plan.tools, expected)

    def _learn(self, direction: str, plan: TransferPlan, done: Transfer) -> None:
        with self._tally.lock:
            times = self._tally.times(plan.context.device)
            if times is not None:
                times.observe(direction, self.nbytes, done.tool, done.seconds)

    def _move(self, operation: str, execution: Execution, move: Callable[[str], TransportResult]) -> TransportResult:
        """Run the operation; count the notes of the tools, and name the index and the tool in errors."""

        def attempt(tool: str) -> TransportResult:
            with translate_native_errors(self._folder):
                return move(tool)

        notes: list[str] = []
        try:
            moved = execution.run(attempt)
            notes += (f"{execution.tool}: {note}" for note in moved.notes)
        except (OSError, CorruptFileError) as error:
            tool = execution.tool
            raise self._with_index(f"{tool}: {operation}" if tool else operation, error) from error
        finally:
            with self._tally.lock:
                self._tally.notes.update(f"{operation}: {note}" for note in (*execution.failures, *notes))
                times = self._tally.times(execution.plan.context.device)
                if times is not None:
                    for tool in set(execution.order) - set(execution.left):
                        times.fail(self.nbytes, tool)
        with self._tally.lock:
            self._tally.routes[moved.route] += 1
        return moved

    def _with_index(self, operation: str, error: OSError | CorruptFileError) -> FastIOError:
        """Return the same error with the index, the operation and the tool."""
        if isinstance(error, CorruptFileError):
            return CorruptFileError(self._folder, f"index {self._index}", f"{operation}: {error.problem}")
        what, offset = f"{operation} of index {self._index}", None
        if isinstance(error, TransferError):
            what, offset = f"{what} ({error.operation})", error.offset
        return TransferError(error.errno or errno.EIO, what, self._folder, offset)


def blocks(nbytes: int) -> int:
    """Return the bytes of whole blocks."""
    return -(-nbytes // BLOCK) * BLOCK


_streams = threading.local()


def _stream_of_thread(accelerator: devices.Accelerator, device: torch.device) -> Any:
    """Return the stream of this thread's transfers on a device."""
    made: dict[str, Any] = _streams.__dict__
    if str(device) not in made:
        made[str(device)] = accelerator.new_stream(device)
    return made[str(device)]


@contextlib.contextmanager
def _ordered(device: torch.device, fence: Any) -> Iterator[None]:
    """Transfers inside follow the event, and have ended on the device when this ends; this thread waits for both."""
    accelerator = devices.find(device)
    if accelerator is None:
        yield
        return
    with devices.copy_errors():
        fence.synchronize()
        stream = _stream_of_thread(accelerator, device)
    try:
        with accelerator.under(stream):
            yield
    finally:
        with devices.copy_errors():
            stream.synchronize()
