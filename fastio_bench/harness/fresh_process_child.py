"""The child of :mod:`fastio_bench.harness.fresh_process`: imports what jobs need, waits for one, runs it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from fastio import dicts
from fastio_bench.harness import page_cache
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Measured, describe
from fastio_bench.harness.timing import timed
from fastio_bench.peers import catalogue
from fastio_bench.peers.peer import Peer
from fastio_bench.workloads import objects

IMPORTED, READY, GO, DONE = "imported\n", "ready\n", "go\n", "done\n"


class ChildError(RuntimeError):
    """A fresh process failed; the message is the child's."""


@dataclass(frozen=True, slots=True)
class Job:
    """The one save or load that a child runs.

    ``peer`` is a peer's name, or one of fastio's tools as ``tool:<name>``. ``operation`` is ``save`` or ``load``;
    ``state`` is ``cold`` or ``warm`` for a load, ``durable`` or ``not durable`` for a save. ``fingerprint`` is that of
    the object which a load must return. Before a load, memory for ``times`` the object's bytes is prepared.
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
    """Run the job and print its times, or its error, as one line of JSON."""
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)  # output of libraries must not mix with the answer to the parent
        print(IMPORTED, end="", file=parent, flush=True)
        text = sys.stdin.readline()
        if not text:
            return  # no job: the parent has ended or dismissed it
        try:
            answer: dict[str, Any] = asdict(_run(Job(**json.loads(text)), parent))
        except Exception as error:
            answer = {"error": describe(error)}
        print(json.dumps(answer), file=parent)
    dicts.flush()


def _say(parent: TextIO, word: str) -> None:
    """Send a word to the parent and wait for its reply."""
    print(word, end="", file=parent, flush=True)
    sys.stdin.readline()


def _run(job: Job, parent: TextIO) -> Measured:
    peer, workload = catalogue.find(job.peer, job.device), objects.find(job.workload)
    problem = peer.unable(job.operation, workload.kind)
    if problem:
        raise ChildError(problem)
    return _load(peer, workload, job, parent) if job.operation == "load" else _save(peer, workload, job, parent)


def _load(peer: Peer, workload: objects.Workload, job: Job, parent: TextIO) -> Measured:
    objects.ready(job.device)
    (page_cache.drop if job.state == "cold" else page_cache.warm)(job.path)
    load = peer.loader()

    def call() -> tuple[objects.Object, str]:
        thing, way = load(job.path)
        if peer.mapped:
            objects.touch(thing)
        return thing, way

    _say(parent, READY)
    with Reserve(job.times * workload.nbytes):
        pass
    if job.state == "warm" and page_cache.resident(job.path) < page_cache.WARM:
        page_cache.warm(job.path)  # the kernel may have dropped pages to make room for the reserve
    page_cache.check(job.path, job.state)
    thing, measured = timed(call, job.device, workload.nbytes if job.device == "cpu" else 0)
    _say(parent, DONE)
    if objects.fingerprint(thing) != job.fingerprint:
        raise ChildError(f"{peer.name} loaded something else than was saved")
    return measured


def _save(peer: Peer, workload: objects.Workload, job: Job, parent: TextIO) -> Measured:
    thing, save = objects.place(workload.make(), job.device), peer.saver()
    if peer.adopt is not None:
        thing = peer.adopt(thing)
    _say(parent, READY)
    return timed(lambda: (None, save(thing, job.path, job.state == "durable")), job.device, 0)[1]
