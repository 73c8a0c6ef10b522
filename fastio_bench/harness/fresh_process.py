"""Times calls in fresh processes: each call in a Python process that has done nothing else.

A long-running process reuses its heap, which makes loads look faster than in real programs, which load once, early.
The child brings the file into or out of the page cache, times only the call, and checks what it loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from types import TracebackType

from fastio_bench.harness.children import completed, kill, started
from fastio_bench.harness.fresh_process_child import DONE, GO, IMPORTED, READY, ChildError, Job
from fastio_bench.harness.rounds import Measured

__all__ = ["ChildError", "Job", "import_seconds", "measure", "paired"]

# The child exits without teardown: that of Python and torch takes half a second, in which the freed memory lies idle.
_CHILD = (
    "import os, sys; sys.path[:] = {path!r}; "
    "from fastio_bench.harness.fresh_process_child import main; main(); os._exit(0)"
)
_IMPORT = (
    "import sys; sys.path[:] = {path!r}; import time, torch; start = time.perf_counter(); import fastio; "
    "print(time.perf_counter() - start)"
)
_PIPE = subprocess.PIPE


class _Process:
    """A context manager: a child that imports what jobs need, then waits for one. ``environment`` is set in it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-c", _CHILD.format(path=sys.path)]
        self._imported = False
        with ExitStack() as stack:
            # Errors go to a file: a pipe that is not read would block the child when it is full.
            self._complaint = stack.enter_context(tempfile.TemporaryFile("w+"))
            settings = {"stdin": _PIPE, "stdout": _PIPE, "stderr": self._complaint}
            self._child = stack.enter_context(started(command, env={**os.environ, **environment}, **settings))
            self._stack = stack.pop_all()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def wait_imported(self) -> None:
        """Wait until the child has imported everything, or has ended because an import failed."""
        self._imported = self._imported or self.line() == IMPORTED

    def line(self) -> str:
        """The next line of the child's output; empty if it has ended."""
        return self._child.stdout.readline() if self._child.stdout is not None else ""

    def tell(self, line: str) -> None:
        """Send a line to the child; has no effect if it has ended."""
        with contextlib.suppress(BrokenPipeError):
            if self._child.stdin is not None:
                os.write(self._child.stdin.fileno(), line.encode())  # not buffered: an error leaves no bytes

    def failed(self) -> str:
        """Wait until the child has ended. Returns how it failed; empty if it did not."""
        status = self._child.wait()
        self._complaint.seek(0)
        return _ended(status, self._complaint.read()) if status else ""

    def dismiss(self) -> None:
        """End a child that has no job."""
        with self:
            kill(self._child)


@dataclass
class _Pairs:
    """Spare processes that wait for a job, by environment. There are none outside :func:`paired`."""

    wanted: bool = False
    waiting: dict[tuple[tuple[str, str], ...], _Process] = field(default_factory=dict)

    def process(self, environment: Mapping[str, str]) -> _Process:
        """A waiting process, or a new one. Then another one is started to wait."""
        key = tuple(sorted(environment.items()))
        if key in self.waiting:
            return self.waiting.pop(key)
        if self.wanted:
            self.waiting[key] = _Process(environment)
        return _Process(environment)


_pairs = _Pairs()


@contextmanager
def paired() -> Iterator[None]:
    """Start two fresh processes at a time inside the block; the second waits for the next job.

    Importing torch takes longer than most jobs, and one core. Nothing is timed before both have imported it.
    """
    _pairs.wanted = True
    try:
        yield
    finally:
        _pairs.wanted = False
        while _pairs.waiting:
            _pairs.waiting.popitem()[1].dismiss()


def measure(
    job: Job,
    environment: Mapping[str, str] | None = None,
    at_ready: Callable[[], None] = lambda: None,
    at_done: Callable[[], None] = lambda: None,
) -> Measured:
    """Run the job in a fresh process. Raises ChildError with the child's reason if it fails.

    ``at_ready`` is called right before the child starts its clock, ``at_done`` after it has stopped it, while the child
    still holds what it loaded.
    """
    heed = {READY: at_ready, DONE: at_done}
    with _pairs.process(environment or {}) as process:
        for each in (process, *_pairs.waiting.values()):
            each.wait_imported()
        process.tell(json.dumps(asdict(job)) + "\n")
        while (said := process.line()) in heed:
            heed[said]()
            process.tell(GO)
        failed = process.failed()
    if failed or not said:
        raise ChildError(failed or "the fresh process gave no answer")
    answer = json.loads(said)
    if "error" in answer:
        raise ChildError(answer["error"])
    return Measured(**answer)


def _ended(status: int, complaints: str) -> str:
    """The exit status and the last line of errors of a process that gave no answer."""
    last = (complaints.strip().splitlines() or ["it said nothing"])[-1]
    return f"the fresh process ended with status {status}: {last}"


def import_seconds() -> float:
    """Seconds that ``import fastio`` takes in a fresh process which has imported torch. Raises ChildError."""
    command = [sys.executable, "-c", _IMPORT.format(path=sys.path)]
    child = completed(command)
    if child.returncode:
        raise ChildError(_ended(child.returncode, child.stderr))
    return float(child.stdout)
