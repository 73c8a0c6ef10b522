"""Runs what takes hours, and writes one page of its results: ``make nightly``.

Each step is a command; its exit status, time and last words go to docs/quality.md, its whole output to build/nightly/.
A step that fails does not stop the others. Some of them: ``make nightly ONLY="wheels soak"``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ".venv/bin/pytest -q --numprocesses=2 --dist=loadfile"

# What runs, and what it shows when it passes.
STEPS = {
    "check": ("make check", "linters, types, layers of imports"),
    "test": ("make test", "the whole suite"),
    "more": (
        f"{PYTEST} -m 'nightly or hypothesis' --hypothesis-profile=nightly",
        "what the suite does in small, in full",
    ),
    "native": ("make native-test native-test-threads", "the C++ tests under the three sanitizers"),
    "nvme": ("make test-nvme", "the block store's drivers on an emulated machine with NVMe disks"),
    "differential": ("make differential EXAMPLES=100000", "fastio does with generated objects what torch does"),
    "kills": (
        f"{PYTEST} -m 'nightly or not nightly' "
        "tests/robustness/test_killed.py tests/robustness/test_interrupted.py tests/bench/test_interrupts.py",
        "a process that is killed or interrupted leaves the whole old or the whole new file",
    ),
    "soak": (
        "cd .venv && bin/python ../tests/support/soak.py --minutes 30",
        "saves, loads, offloaded steps for half an hour: no memory, no descriptors, no threads are lost",
    ),
    "torch": ("make torch-versions", "the quick tests with the oldest torch, the newest, and those between"),
    "docs": ("make docs", "the documentation is built without a warning"),
    "wheels": ("make wheels", "wheels for each Python and processor, checked and tried"),
}


def main() -> int:
    """Run the steps that were asked for; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "quality.md")
    parser.add_argument("only", nargs="*", choices=[[], *STEPS], help="these steps alone")
    asked = parser.parse_args()
    logs = ROOT / "build" / "nightly"
    logs.mkdir(parents=True, exist_ok=True)
    rows, failed = [], False
    for name in asked.only or STEPS:
        command, shows = STEPS[name]
        began = time.monotonic()
        with open(logs / f"{name}.log", "w+") as log:
            status = subprocess.run(["bash", "-c", command], cwd=ROOT, stdout=log, stderr=log, check=False).returncode
            log.seek(0)
            words = [line.strip() for line in log if line.strip()]
        failed |= bool(status)
        minutes = (time.monotonic() - began) / 60
        last = re.sub(r"[|`\x1b]", " ", words[-1] if words else "")[:120]
        rows.append(f"| {name} | {shows} | {'**failed**' if status else 'passed'} | {minutes:.0f} | `{last}` |")
        sys.stdout.write(f"{name}: {'failed' if status else 'passed'} after {minutes:.1f} minutes; {last}\n")
        sys.stdout.flush()
    asked.out.write_text(page(rows))
    return int(failed)


def page(rows: list[str]) -> str:
    """The page: when and where it ran, and a row for each step."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    where = f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} processors"
    head = f"""# Quality

What `make nightly` found on {today} at commit {commit or "unknown"}, on {where}. `.ci/nightly.py` has the commands; a
step that is not listed did not run.

| step | what it shows | result | minutes | its last words |
|---|---|---|---|---|
"""
    return head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
