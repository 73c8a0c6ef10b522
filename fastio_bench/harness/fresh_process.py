"""Timing in fresh processes: each call in a Python of its own that has done nothing else yet.

A long process reuses its heap and so flatters loads; real programs load once, early. The child brings the file into or
out of the page cache, times only the call, and checks what it loaded.
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

# The child ends at once: the way out of Python and torch takes half a second, and what was loaded lies free meanwhile.
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
    """A child that imports what jobs want, and then waits for one; ``environment`` is set in it. Use as a context."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-c", _CHILD.format(path=sys.path)]
        self._imported = False
        with ExitStack() as stack:
            # A pipe that nobody empties meanwhile would stop who fills it.
            self._complaint = stack.enter_context(tempfile.TemporaryFile("w+"))
            settings = {"stdin": _PIPE, "stdout": _PIPE, "stderr": self._complaint}
            self._child = stack.enter_context(started(command, env={**os.environ, **environment}, **settings))
            self._stack = stack.pop_all()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def wait_imported(self) -> None:
        """Until it has imported all, or has failed to: then it has ended, and its status tells."""
        self._imported = self._imported or self.line() == IMPORTED

    def line(self) -> str:
        """What it says next, nothing where it has ended."""
        return self._child.stdout.readline() if self._child.stdout is not None else ""

    def tell(self, line: str) -> None:
        """Say what it waits for, to nobody if it has ended."""
        with contextlib.suppress(BrokenPipeError):
            if self._child.stdin is not None:
                os.write(self._child.stdin.fileno(), line.encode())  # past the buffer, which would keep what fails

    def failed(self) -> str:
        """Wait until it has ended; how, if that was with an error."""
        status = self._child.wait()
        self._complaint.seek(0)
        return _ended(status, self._complaint.read()) if status else ""

    def dismiss(self) -> None:
        """End it: nobody has a job for it."""
        with self:
            kill(self._child)


@dataclass
class _Pairs:
    """The processes that were started beside others and have no job yet, by their environment; none unless wanted."""

    wanted: bool = False
    waiting: dict[tuple[tuple[str, str], ...], _Process] = field(default_factory=dict)

    def process(self, environment: Mapping[str, str]) -> _Process:
        """One that waits, or a new one, and then another that waits beside it."""
        key = tuple(sorted(environment.items()))
        if key in self.waiting:
            return self.waiting.pop(key)
        if self.wanted:
            self.waiting[key] = _Process(environment)
        return _Process(environment)


_pairs = _Pairs()


@contextmanager
def paired() -> Iterator[None]:
    """Inside, two fresh processes are started at once, and the second waits for the next job.

    To import torch takes longer than most jobs do, and one processor. Nothing is timed before both have imported it.
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
    """Run the job in a fresh process; ChildError with the child's reason if it fails.

    ``at_ready`` is called when the child has everything ready, right before it starts its clock; ``at_done`` when that
    has stopped, while the child still has what it loaded.
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
    """How a process ended that gave no answer, and its last word."""
    last = (complaints.strip().splitlines() or ["it said nothing"])[-1]
    return f"the fresh process ended with status {status}: {last}"


def import_seconds() -> float:
    """Seconds that ``import fastio`` takes in a fresh process which has imported torch. Raises ChildError."""
    command = [sys.executable, "-c", _IMPORT.format(path=sys.path)]
    child = completed(command)
    if child.returncode:
        raise ChildError(_ended(child.returncode, child.stderr))
    return float(child.stdout)
