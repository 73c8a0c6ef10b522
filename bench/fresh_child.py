"""The child of :mod:`fastio.bench.fresh`: it imports all that a job may want, waits for one, does it, and ends."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from fastio import dicts
from fastio.bench import cold, peers, workloads
from fastio.bench.peer import Peer
from fastio.bench.reserve import Reserve
from fastio.bench.rounds import Measured, describe
from fastio.bench.timing import timed

IMPORTED, READY, GO, DONE = "imported\n", "ready\n", "go\n", "done\n"


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


def main() -> None:
    """Do the job, and tell what it took or what went wrong, as one line of JSON."""
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)  # what a library prints must not stand where the parent reads the answer
        print(IMPORTED, end="", file=parent, flush=True)
        text = sys.stdin.readline()
        if not text:
            return  # nobody wants it
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

    _say(parent, READY)
    with Reserve(job.times * workload.nbytes):
        pass
    if job.state == "warm" and cold.resident(job.path) < cold.WARM:
        cold.warm(job.path)  # short of memory, the kernel may have taken pages for the reserve
    cold.check(job.path, job.state)
    thing, measured = timed(call, job.device, workload.nbytes if job.device == "cpu" else 0)
    _say(parent, DONE)
    if workloads.fingerprint(thing) != job.fingerprint:
        raise ChildError(f"{peer.name} loaded something else than was saved")
    return measured


def _save(peer: Peer, workload: workloads.Workload, job: Job, parent: TextIO) -> Measured:
    thing, save = workloads.place(workload.make(), job.device), peer.saver()
    if peer.adopt is not None:
        thing = peer.adopt(thing)
    _say(parent, READY)
    return timed(lambda: (None, save(thing, job.path, job.state == "durable")), job.device, 0)[1]
