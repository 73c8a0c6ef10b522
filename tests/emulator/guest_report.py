"""Turns the guest's console output into a list of passed and failed tests.

Messages begin with ``rig:``; all other lines are output of the test, which is shown when it fails.
"""

from __future__ import annotations

from pathlib import Path

import counts
import machine
from monitor import Monitor

PREFIX = "rig: "


class Report:
    def __init__(self, trace: Path) -> None:
        self.passed = 0
        self.failures: list[str] = []
        self.counts: list[counts.Counts] = []
        self._trace = trace
        self._test_begin = self._trace_begin = 0  # in the trace
        self._test = ""  # the running test
        self._note = ""
        self._output: list[str] = []
        self._label = ""
        self._bar = range(0)
        self._peer: dict[str, int] = {}
        self._done = False

    def handle_line(self, line: str, monitor: Monitor | None) -> bool:
        """Process one line of the console. Returns whether the guest waits for an answer."""
        if monitor is None or not line.startswith(PREFIX):
            self._output.append(line)
            return False
        verb, _, rest = line.removeprefix(PREFIX).partition(" ")
        if verb == "begin":
            self._test, self._note, self._output = rest, "", []
            self._test_begin = self._trace.stat().st_size
        elif verb == "end":
            status, _, name = rest.partition(" ")
            self._judge(name, int(status))
        elif verb == "note":
            self._note = rest
        elif verb == "bar":
            begin, end = (int(word, 16) for word in rest.split()[:2])
            self._bar = range(begin, end + 1)
        elif verb == "peer":
            self._peer = _numbers(rest)
        elif verb == "ask":
            self._count(rest, monitor)
            return True
        elif verb == "done":
            self._done = True
        else:
            self._fail(line.removeprefix(PREFIX))
        return False

    @property
    def booted(self) -> bool:
        """Whether the guest has started its first test."""
        return bool(self._test)

    def end(self, status: int, errors: str) -> None:
        """Record that the machine is off."""
        if not self._done:
            self._output += errors.splitlines()
            self._fail(f"the machine ended (status {status}) in the test {self._test or 'before the first one'!r}")

    def compare_peer(self, given: bytes, box: Path) -> None:
        """Compare the peer's memory and the disk, as files of the emulator, with ``given``, the BAR's initial bytes."""
        if not self._peer:
            return
        bar = (box / "bar").read_bytes()
        nbytes, back, offset = (self._peer[key] for key in ("nbytes", "back", "disk_offset"))
        with (box / machine.PEER_DISK.name).open("rb") as image:
            image.seek(offset)
            on_disk = image.read(nbytes)
        name = "vfio, peer memory: the BAR and the disk as the host sees them"
        for what, found in (("the disk", on_disk), ("the BAR's second half", bar[back : back + nbytes])):
            if found != given[:nbytes]:
                first = next((at for at, pair in enumerate(zip(found, given, strict=False)) if pair[0] != pair[1]), 0)
                self._fail(f"{name}: {what} differs from what the host put into the BAR, first at byte {first}")
                return
        self._pass(name, f"{nbytes} bytes to the disk and back")

    def _judge(self, name: str, status: int) -> None:
        traced = counts.read(self._trace, self._test_begin).splitlines()
        undefined = [line for line in traced if line.startswith("pci_nvme_ub_")]
        # The kernel programs the registers for the other drivers, and no driver can foresee an outside reset.
        checked = name.startswith("vfio") and not name.endswith("controller reset")
        if status != 0:
            self._fail(f"{name} (status {status})")
        elif undefined and checked:
            self._output = undefined
            self._fail(f"{name}: the driver did {len(undefined)} times what NVMe leaves undefined")
        else:
            self._pass(name, self._note)

    def _pass(self, name: str, note: str) -> None:
        self.passed += 1
        print(f"ok      {name}{f' ({note})' if note else ''}", flush=True)

    def _fail(self, text: str) -> None:
        self.failures.append(text)
        print(f"FAILED  {text}", *(f"        {line}" for line in self._output[-30:]), sep="\n", flush=True)

    def _count(self, request: str, monitor: Monitor) -> None:
        _, verb, rest = request.split(" ", 2)
        if verb == "begin":
            self._label = rest
            self._trace_begin = self._trace.stat().st_size
            monitor.trace(counts.EVENTS, True)
            return
        monitor.trace(counts.EVENTS, False)
        row = counts.count(self._label, counts.read(self._trace, self._trace_begin), self._bar, _numbers(rest))
        self.counts.append(row)
        for wrong in row.wrong():
            self._fail(f"{row.label}: counts: {wrong}")


def _numbers(words: str) -> dict[str, int]:
    pairs = (word.partition("=") for word in words.split())
    return {key: int(value) for key, _, value in pairs}
