"""Starts the fresh processes of ``fastio-bench checkpoint`` and reads their results, one JSON line each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from queue import SimpleQueue
from typing import IO, Any, TypeAlias

from fastio_bench.checkpoint.works import Job
from fastio_bench.harness.children import kill
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.interrupts import held
from fastio_bench.harness.rounds import Failure, Sample, describe

_CHILD = "import sys; sys.path[:] = {path!r}; from fastio_bench.checkpoint.child import main; main(sys.argv[1])"
_SAMPLE, _FAILURE, _ERROR = "sample", "failure", "error"

Outcome: TypeAlias = "Sample | Failure"


def run(jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
    """Run the jobs at the same time, and yield the results of the first one as soon as they come.

    Raises ChildError if one of them fails. No process is left at the end, in any case.
    """
    lines: SimpleQueue[tuple[int, str | None]] = SimpleQueue()
    with ExitStack() as stack:
        complaints: list[IO[str]] = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in jobs]
        children: list[subprocess.Popen[str]] = []
        for number, (job, complaint) in enumerate(zip(jobs, complaints, strict=True)):
            with held():
                children.append(_start(job, complaint))
                reader = threading.Thread(target=_read, args=(number, children[-1], lines), daemon=True)
                reader.start()
                stack.callback(_end, children[-1], reader)
        running = len(jobs)
        while running:
            number, line = lines.get()
            if line is None:
                running -= 1
                _require(children[number], complaints[number])
                continue
            outcome = _understood(json.loads(line))
            if number == 0:
                yield outcome


def _start(job: Job, complaint: IO[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _CHILD.format(path=sys.path), json.dumps(asdict(job))]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=complaint, text=True, start_new_session=True)


def _read(number: int, child: subprocess.Popen[str], lines: SimpleQueue[tuple[int, str | None]]) -> None:
    for line in child.stdout or ():
        lines.put((number, line))
    lines.put((number, None))


def _require(child: subprocess.Popen[str], complaint: IO[str]) -> None:
    """Wait for the child. Raises ChildError unless it succeeds."""
    if child.wait():
        complaint.seek(0)
        last = complaint.read().strip().splitlines()[-1:] or ["it said nothing"]
        raise ChildError(f"the fresh process ended with status {child.returncode}: {last[0]}")


def _end(child: subprocess.Popen[str], reader: threading.Thread) -> None:
    kill(child)
    reader.join()
    with child:
        pass  # waits for the child and closes the pipe


def _understood(told: dict[str, Any]) -> Outcome:
    """Parse one line. Raises ChildError if it is an error."""
    if _ERROR in told:
        raise ChildError(told[_ERROR])
    if _SAMPLE in told:
        return Sample(**told[_SAMPLE])
    return Failure(**told[_FAILURE])


def main(text: str) -> None:
    """In the child: run the job and print each result as a line of JSON."""
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)  # output of libraries must not mix with the results for the parent
        try:
            for thing in done(Job(**json.loads(text))):
                print(json.dumps(_line(thing)), file=parent, flush=True)
        except Exception as error:
            print(json.dumps({_ERROR: describe(error)}), file=parent, flush=True)


def _line(thing: Outcome) -> dict[str, Any]:
    return {_SAMPLE if isinstance(thing, Sample) else _FAILURE: asdict(thing)}


def done(job: Job) -> Iterator[Outcome]:
    """Run the job in this process. Each task imports only what it needs."""
    module, _, task = job.task.partition(".")
    run: Callable[[Job], Iterator[Outcome]] = getattr(import_module(f"fastio_bench.checkpoint.{module}"), task)
    return run(job)
