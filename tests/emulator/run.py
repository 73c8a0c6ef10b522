"""Boots the emulated machine and reports its tests: run.py FOLDER PROGRAM [ONLY]. See `make test-nvme`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import counts
import initramfs
import machine
import packages
from guest_report import PREFIX, Report
from monitor import Monitor

_BOOTS = 3
_SILENCE_SECONDS = 400  # then the machine is taken to hang; a test in the guest has 300 s


def main() -> int:
    folder, program = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        root = packages.set_up(folder)
    except packages.RigMissingError as error:
        print(f"make test-nvme cannot run here: {error}")
        return 1
    print("emulated machine:", ", ".join(packages.versions(folder)))
    archive = initramfs.build(root, program, folder)
    for _ in range(_BOOTS):
        with tempfile.TemporaryDirectory(dir=folder) as box:
            report = _boot(root, archive, Path(box), only)
        if report.booted:
            break
        print("the guest's kernel did not boot: emulated timers fail at times, before any test", flush=True)
    for line in counts.table(report.counts) if report.counts else ():
        print(line)
    print("emulated: counts, not seconds" if report.counts else "no counts")
    for line in report.failures:
        print(f"FAILED {line}")
    print(f"{report.passed} passed, {len(report.failures)} failed")
    return 1 if report.failures or report.passed == 0 else 0


def _boot(root: Path, archive: Path, box: Path, only: str) -> Report:
    for disk in machine.DISKS:
        with (box / disk.name).open("wb") as image:
            image.truncate(disk.nbytes)
    given = os.urandom(machine.BAR_NBYTES // 2)
    (box / "bar").write_bytes(given + bytes(machine.BAR_NBYTES // 2))
    errors = (box / "errors").open("w+")  # a file, because QEMU would block on a full pipe that is not read
    qemu = subprocess.Popen(
        machine.command(root, archive, box, only),
        env=machine.environment(root),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        errors="replace",
    )
    report = Report(box / "trace")
    guard = _guard(qemu)
    try:
        assert qemu.stdout is not None
        assert qemu.stdin is not None
        monitor: Monitor | None = None
        for line in qemu.stdout:
            guard.cancel()
            guard = _guard(qemu)
            if monitor is None and line.startswith(PREFIX):  # earlier, the machine may have ended already
                monitor = Monitor(box / "qmp")
            if report.handle_line(line.rstrip("\r\n"), monitor):
                qemu.stdin.write("\n")
                qemu.stdin.flush()
        report.end(qemu.wait(), (box / "errors").read_text())
    finally:
        guard.cancel()
        qemu.kill()
        qemu.wait()
        errors.close()
    report.compare_peer(given, box)
    return report


def _guard(qemu: subprocess.Popen[str]) -> threading.Timer:
    guard = threading.Timer(_SILENCE_SECONDS, qemu.kill)
    guard.start()
    return guard


if __name__ == "__main__":
    sys.exit(main())
