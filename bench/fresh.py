"""Timing in fresh processes: each call in a Python of its own that has done nothing else yet.

A long process reuses its heap and so flatters loads; real programs load once, early. The child brings the file into or
out of the page cache, times only the call, and checks what it loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from fastio.bench import cold, peers, workloads
from fastio.bench.peer import Peer
from fastio.bench.reserve import Reserve
from fastio.bench.rounds import Measured, describe
from fastio.bench.timing import timed

_CHILD = "import sys; sys.path[:] = {path!r}; from fastio.bench.fresh import main; main(sys.argv[1])"
_IMPORT = (
    "import sys; sys.path[:] = {path!r}; import time, torch; start = time.perf_counter(); import fastio; "
    "print(time.perf_counter() - start)"
)
_READY, _GO = "ready\n", "go\n"
_PIPE = subprocess.PIPE


class ChildError(RuntimeError):
    """The fresh process failed; the message is the child's own."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a child does, once.

    ``peer`` is a peer's name, or one of fastio's tools as ``tool:<name>``. ``operation`` is ``save`` or ``load``;
    ``state`` is ``cold`` or ``warm`` for a load, ``durable`` or ``not durable`` for a save. ``fingerprint`` is that of
    the object which a load must return.
    """

    peer: str
    operation: str
    state: str
    workload: str
    path: str
    fingerprint: int = 0
    device: str = "cpu"


def measure(
    job: Job, environment: Mapping[str, str] | None = None, at_ready: Callable[[], None] = lambda: None
) -> Measured:
    """Run the job in a fresh process; ChildError with the child's reason if it fails.

    ``at_ready`` is called when the child has everything ready, right before it starts its clock.
    """
    command = [sys.executable, "-c", _CHILD.format(path=sys.path), json.dumps(asdict(job))]
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, env=variables, stdin=_PIPE, stdout=_PIPE, stderr=_PIPE, text=True) as child:
        try:
            first = child.stdout.readline() if child.stdout is not None else ""
            if first == _READY:
                at_ready()
            rest, complaint = child.communicate(_GO)
        except BaseException:
            child.kill()
            raise
    said = first + rest
    if child.returncode or not said.strip():
        last = complaint.strip().splitlines()[-1:] or ["it said nothing"]
        raise ChildError(f"the fresh process ended with status {child.returncode}: {last[0]}")
    answer = json.loads(said.splitlines()[-1])
    if "error" in answer:
        raise ChildError(answer["error"])
    return Measured(**answer)


def import_seconds() -> float:
    """Seconds that ``import fastio`` takes in a fresh process which has imported torch."""
    command = [sys.executable, "-c", _IMPORT.format(path=sys.path)]
    return float(subprocess.run(command, check=True, stdout=_PIPE, text=True).stdout)


def main(text: str) -> None:
    """The child: do the job, tell what it took or what went wrong, as one line of JSON."""
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)  # what a library prints must not stand where the parent reads the answer
        try:
            answer: dict[str, Any] = asdict(_run(Job(**json.loads(text)), parent))
        except Exception as error:
            answer = {"error": describe(error)}
        print(json.dumps(answer), file=parent)


def _ready(parent: TextIO) -> None:
    """Tell the parent that all is ready, and wait for its word."""
    print(_READY, end="", file=parent, flush=True)
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

    _ready(parent)
    with Reserve(2 * workload.nbytes):
        pass
    if job.state == "warm" and cold.resident(job.path) < cold.WARM:
        cold.warm(job.path)  # short of memory, the kernel may have taken pages for the reserve
    cold.check(job.path, job.state)
    thing, measured = timed(call, job.device, workload.nbytes if job.device == "cpu" else 0)
    if workloads.fingerprint(thing) != job.fingerprint:
        raise ChildError(f"{peer.name} loaded something else than was saved")
    return measured


def _save(peer: Peer, workload: workloads.Workload, job: Job, parent: TextIO) -> Measured:
    thing, save = workloads.place(workload.make(), job.device), peer.saver()
    if peer.adopt is not None:
        thing = peer.adopt(thing)
    _ready(parent)
    return timed(lambda: (None, save(thing, job.path, job.state == "durable")), job.device, 0)[1]
