"""Peers at work: what is timed, and what comes before and after, untimed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastio.bench import fresh, limit, peers
from fastio.bench.reserve import Reserve
from fastio.bench.rounds import Contestant, Measured
from fastio.bench.timing import timed
from fastio.bench.workloads import Object, Workload


@dataclass(frozen=True, slots=True)
class Contestants:
    """Makes contestants for one workload; ``thing`` is its object, ``fingerprint`` the object's."""

    folder: Path
    workload: Workload
    thing: Object
    fingerprint: int
    reserve: Reserve
    device: str = "cpu"

    def saver(self, peer: peers.Peer, durable: bool) -> Contestant:
        """Saves to a path where nothing is, in this process."""
        path, save = self.folder / "saving", peer.saver()

        def run() -> Measured | str:
            if self.device == "cpu":
                return save(self.thing, str(path), durable)
            return timed(lambda: (None, save(self.thing, str(path), durable)), self.device)[1]

        return Contestant(peer.label, run, self._settle, lambda: self._clear(path))

    def fresh_saver(self, peer: peers.Peer, durable: bool) -> Contestant:
        """Makes the object and saves it in a fresh process, which tells its peak of memory."""
        path = self.folder / "saving"
        state = "durable" if durable else "not durable"
        job = fresh.Job(peer.name, "save", state, self.workload.name, str(path))
        return Contestant(peer.label, lambda: self._fresh(job), os.sync, lambda: self._clear(path))

    def loader(self, peer: peers.Peer, state: str) -> Contestant:
        """Loads in a fresh process what the peer itself (or the one whose files it reads) has saved before."""
        path = self.folder / f"of-{peer.owner.replace(' ', '-')}"
        if not path.exists():
            peers.find(peer.owner, self.device).saver()(self.thing, str(path), True)
        job = fresh.Job(peer.name, "load", state, self.workload.name, str(path), self.fingerprint, self.device)
        return Contestant(peer.label, lambda: self._fresh(job, peer.environment), os.sync, self.reserve.hold)

    def limit(self, disk: limit.Limit, write: bool) -> Contestant:
        """Moves as many bytes as the workload has, directly."""
        path, nbytes = self.folder / "limit", self.workload.nbytes

        def run() -> Measured:
            return disk.write(path, nbytes) if write else disk.read(path, nbytes)

        def prepare() -> None:
            if not write and not path.exists():
                disk.write(path, nbytes)
            self._settle()

        return Contestant(limit.TOOL, run, prepare, self.reserve.hold)

    def _fresh(self, job: fresh.Job, environment: Mapping[str, str] | None = None) -> Measured:
        self.reserve.hold()
        return fresh.measure(job, environment, self.reserve.release)

    def _clear(self, path: Path) -> None:
        """Remove what was saved, and take the free memory back."""
        remove(path)
        self.reserve.hold()

    def _settle(self) -> None:
        """Let the disk finish what others left, and free the memory that the next may want."""
        self.reserve.hold()
        os.sync()
        self.reserve.release()


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
