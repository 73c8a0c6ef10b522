"""Turns peers into contestants: the timed call, and the untimed steps before and after it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from fastio_bench.harness import fresh_process, page_cache, warmup
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Contestant, Measured
from fastio_bench.harness.timing import timed
from fastio_bench.machine import disk_limit, memory_limit
from fastio_bench.peers import catalogue
from fastio_bench.peers.peer import Peer
from fastio_bench.workloads.objects import Object, Workload


@dataclass(frozen=True, slots=True)
class Contestants:
    """Makes contestants for one workload; ``thing`` is its object, ``fingerprint`` the object's.

    ``lean``: no contestant makes a copy of the object, besides the page cache's and the one that it returns, so only
    the memory for these is released from the reserve. Else it is twice the object's bytes.
    """

    folder: Path
    workload: Workload
    thing: Object
    fingerprint: int
    reserve: Reserve
    device: str = "cpu"
    lean: bool = False
    _adopted: dict[str, Object] = field(default_factory=dict)

    def saver(self, peer: Peer, durable: bool) -> Contestant:
        """Save to a new path, in this process."""
        path, save = self.folder / "saving", peer.saver()
        thing = self._adopt(peer)

        def run() -> Measured | str:
            if self.device == "cpu":
                return save(thing, str(path), durable)
            return timed(lambda: (None, save(thing, str(path), durable)), self.device)[1]

        return Contestant(peer.label, run, self._settle, lambda: self._clear(path, durable))

    def fresh_saver(self, peer: Peer, durable: bool) -> Contestant:
        """Make the object and save it in a fresh process, for its peak of memory."""
        path = self.folder / "saving"
        state = "durable" if durable else "not durable"
        job = fresh_process.Job(peer.name, "save", state, self.workload.name, str(path))
        return Contestant(
            peer.label, lambda: self._fresh(job, self._times(1)), os.sync, lambda: self._clear(path, durable)
        )

    def loader(self, peer: Peer, state: str) -> Contestant:
        """Load in a fresh process a file that the peer, or the one whose files it reads, saved before."""
        path = self.saved(peer)
        times = self._times(2 if state == "cold" else 1)  # a cold load also fills the page cache
        job = fresh_process.Job(
            peer.name, "load", state, self.workload.name, str(path), self.fingerprint, self.device, times
        )

        def take_back(all_but: int = 0) -> None:
            if state == "cold":
                warmup.uncache(path)
            self.reserve.hold(all_but)

        return Contestant(
            peer.label,
            lambda: self._fresh(job, times, peer.environment, lambda: take_back(self.workload.nbytes)),
            os.sync,
            take_back,
        )

    def saved(self, peer: Peer) -> Path:
        """The file (or folder) that this peer loads, saved durably by its owner if it is not there yet."""
        path = self.folder / f"of-{peer.owner.replace(' ', '-')}"
        if not path.exists():
            owner = catalogue.find(peer.owner, self.device)
            thing, save = self._adopt(owner), owner.saver()
            with warmup.ready(self.reserve, self._times(1) * self.workload.nbytes):
                save(thing, str(path), True)
                warmup.uncache(path)
        return path

    def write_limit(self, disk: disk_limit.Limit, tool: str = disk_limit.TOOL) -> Contestant:
        """Write a file of the workload's size, with direct I/O."""
        path = self.folder / "limit"
        return Contestant(
            tool, lambda: disk.write(path, self.workload.nbytes), self._quiet, lambda: self._clear(path, durable=True)
        )

    def read_limit(self, disk: disk_limit.Limit, path: Path, tool: str = disk_limit.TOOL) -> Contestant:
        """Read a peer's file (or the largest of its folder) with direct I/O."""
        file = _largest(path)
        return Contestant(tool, lambda: disk.read(file, self.workload.nbytes), self._quiet)

    def memory_limit(self, path: Path) -> Contestant:
        """Copy a peer's file (or the largest of its folder) from the page cache into new memory."""
        file = _largest(path)
        read = memory_limit.MemoryLimit().read
        return Contestant(memory_limit.TOOL, lambda: read(file, self.workload.nbytes), self._settle)

    def _adopt(self, peer: Peer) -> Object:
        """The object in the peer's own memory. It is copied once, since such memory may be hard to free."""
        if peer.adopt is None:
            return self.thing
        if peer.name not in self._adopted:
            self._adopted[peer.name] = peer.adopt(self.thing)
        return self._adopted[peer.name]

    def _times(self, least: int) -> int:
        """The free memory for a call, in multiples of the object's bytes."""
        return least if self.lean else 2

    def _fresh(
        self,
        job: fresh_process.Job,
        times: int,
        environment: Mapping[str, str] | None = None,
        at_done: Callable[[], None] = lambda: None,
    ) -> Measured:
        self.reserve.hold()
        return fresh_process.measure(
            job, environment, lambda: self.reserve.release(times * self.workload.nbytes), at_done
        )

    def _clear(self, path: Path, durable: bool) -> None:
        """Remove the saved file, and take the free memory back.

        Both run at the same time if the file is not in the page cache: discarding its blocks may take the disk a
        second.
        """
        alone = durable and path.exists() and warmup.uncache(path)
        with ThreadPoolExecutor(1) as another:
            removal = another.submit(remove, path)
            if not alone:
                removal.result()
            self.reserve.hold()
            removal.result()

    def _quiet(self) -> None:
        """Wait for an idle disk, holding the memory: while it lies free, the host would take it."""
        self.reserve.hold()
        os.sync()

    def _settle(self) -> None:
        """Wait for an idle disk, and free the memory for the next call."""
        self.reserve.hold()
        os.sync()
        self.reserve.release(self._times(1) * self.workload.nbytes)


def _largest(path: Path) -> Path:
    return max(page_cache.files(path), key=lambda file: file.stat().st_size)


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
