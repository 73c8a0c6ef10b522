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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from fastio import dicts
from fastio.bench import cold, peers, workloads
from fastio.bench.children import completed, started
from fastio.bench.peer import Peer
from fastio.bench.reserve import Reserve
from fastio.bench.rounds import Measured, describe
from fastio.bench.timing import timed

# The child ends at once: the way out of Python and torch takes half a second, and what was loaded lies free meanwhile.
_CHILD = "import os, sys; sys.path[:] = {path!r}; from fastio.bench.fresh import main; main(sys.argv[1]); os._exit(0)"
_IMPORT = (
    "import sys; sys.path[:] = {path!r}; import time, torch; start = time.perf_counter(); import fastio; "
    "print(time.perf_counter() - start)"
)
_READY, _GO, _DONE = "ready\n", "go\n", "done\n"
_PIPE = subprocess.PIPE


class ChildError(RuntimeError):
    """The fresh process failed; the message is the child's own."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a child does, once.

    ``peer`` is a peer's name, or one of fastio's tools as ``tool:<name>``. ``operation`` is ``save`` or ``load``;
    ``state`` is ``cold`` or ``warm`` for a load, ``durable`` or ``not durable`` for a save. ``fingerprint`` is that of
    the object which a load must return. Before a load, memory is got ready for ``times`` the object's bytes.
    """

    peer: str
    operation: str
    state: str
    workload: str
    path: str
    fingerprint: int = 0
    device: str = "cpu"
    times: int = 2


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
    command = [sys.executable, "-c", _CHILD.format(path=sys.path), json.dumps(asdict(job))]
    variables = {**os.environ, **(environment or {})}
    heed = {_READY: at_ready, _DONE: at_done}
    with (
        tempfile.TemporaryFile("w+") as complaint,  # a pipe that nobody empties meanwhile would stop who fills it
        started(command, env=variables, stdin=_PIPE, stdout=_PIPE, stderr=complaint) as child,
    ):
        while (said := _line(child)) in heed:
            heed[said]()
            _tell(child, _GO)
        child.wait()
        complaint.seek(0)
        complaints = complaint.read().strip().splitlines()
    if child.returncode or not said:
        last = complaints[-1:] or ["it said nothing"]
        raise ChildError(f"the fresh process ended with status {child.returncode}: {last[0]}")
    answer = json.loads(said)
    if "error" in answer:
        raise ChildError(answer["error"])
    return Measured(**answer)


def _line(child: subprocess.Popen[str]) -> str:
    """What it says next, nothing where it has ended."""
    return child.stdout.readline() if child.stdout is not None else ""


def _tell(child: subprocess.Popen[str], word: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has ended; its status tells
        if child.stdin is not None:
            child.stdin.write(word)
            child.stdin.flush()


def import_seconds() -> float:
    """Seconds that ``import fastio`` takes in a fresh process which has imported torch."""
    command = [sys.executable, "-c", _IMPORT.format(path=sys.path)]
    child = completed(command)
    child.check_returncode()
    return float(child.stdout)


def main(text: str) -> None:
    """The child: do the job, tell what it took or what went wrong, as one line of JSON."""
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)  # what a library prints must not stand where the parent reads the answer
        try:
            answer: dict[str, Any] = asdict(_run(Job(**json.loads(text)), parent))
        except Exception as error:
            answer = {"error": describe(error)}
        print(json.dumps(answer), file=parent)
    dicts.flush()


def _say(parent: TextIO, word: str) -> None:
    """Tell the parent, and wait until it has heeded that."""
    print(word, end="", file=parent, flush=True)
    sys.stdin.readline()


def _run(job: Job, parent: TextIO) -> Measured:
    peer, workload = peers.find(job.peer, job.device), workloads.find(job.workload)
    problem = peer.unable(job.operation, workload.kind)
    if problem:
        raise ChildError(problem)
    return _load(peer, workload, job, parent) if job.operation == "load" else _save(peer, workload, job, parent)


def _load(peer: Peer, workload: workloads.Workload, job: Job, parent: TextIO) -> Measured:
    workloads.ready(job.device)
    (cold.drop if job.state == "cold" else cold.warm)(job.path)
    load = peer.loader()

    def call() -> tuple[workloads.Object, str]:
        thing, way = load(job.path)
        if peer.mapped:
            workloads.touch(thing)
        return thing, way

    _say(parent, _READY)
    with Reserve(job.times * workload.nbytes):
        pass
    if job.state == "warm" and cold.resident(job.path) < cold.WARM:
        cold.warm(job.path)  # short of memory, the kernel may have taken pages for the reserve
    cold.check(job.path, job.state)
    thing, measured = timed(call, job.device, workload.nbytes if job.device == "cpu" else 0)
    _say(parent, _DONE)
    if workloads.fingerprint(thing) != job.fingerprint:
        raise ChildError(f"{peer.name} loaded something else than was saved")
    return measured


def _save(peer: Peer, workload: workloads.Workload, job: Job, parent: TextIO) -> Measured:
    thing, save = workloads.place(workload.make(), job.device), peer.saver()
    if peer.adopt is not None:
        thing = peer.adopt(thing)
    _say(parent, _READY)
    return timed(lambda: (None, save(thing, job.path, job.state == "durable")), job.device, 0)[1]
