"""Runs what takes hours, and writes one page of its results: ``make nightly``.

Each step is a command; its exit status, time and last words go to docs/quality.md, its whole output to build/nightly/.
A step that fails does not stop the others, and the page keeps what earlier runs found of steps that do not run this
time. Some of them: ``make nightly ONLY="wheels soak"``; each in minutes: ``make nightly SMALL=1``.
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ".venv/bin/pytest -q --numprocesses=2 --dist=loadfile"
INTO = ".venv/bin/python -m pip install --quiet --upgrade --target build"
"""Installs packages into a folder of their own below this one."""


class Step(NamedTuple):
    """What runs, what it shows when it passes, and what runs instead of it in a few minutes."""

    command: str
    shows: str
    small: str = ""


STEPS = {
    "check": Step("make check", "linters, types, layers of imports"),
    "test": Step("make test", "the whole suite", "make quick"),
    "more": Step(
        f"{PYTEST} -m 'nightly or hypothesis' --hypothesis-profile=nightly",
        "what the suite does in small, in full",
        f"{PYTEST} -m hypothesis tests/formats tests/offload",
    ),
    "native": Step(
        "make native-test native-test-threads", "the C++ tests under the three sanitizers", "make native-test"
    ),
    "nvme": Step("make test-nvme", "the block store's drivers on an emulated machine with NVMe disks"),
    "differential": Step(
        "make differential EXAMPLES=100000",
        "fastio does with generated objects what torch does",
        "make differential EXAMPLES=600",
    ),
    "mutants": Step(
        ".venv/bin/python .ci/mutants.py --minutes 60",
        "tests fail where the code is changed by one operator or constant",
        ".venv/bin/python .ci/mutants.py --minutes 2",
    ),
    "kills": Step(
        f"{PYTEST} -m 'nightly or not nightly' "
        "tests/robustness/test_killed.py tests/robustness/test_interrupted.py tests/bench/test_interrupts.py",
        "a process that is killed or interrupted leaves the whole old or the whole new file",
    ),
    "soak": Step(
        "cd .venv && bin/python ../tests/support/soak.py --minutes 30",
        "saves, loads, offloaded steps: no memory, no descriptors, no threads are lost",
        "cd .venv && bin/python ../tests/support/soak.py --minutes 5",
    ),
    "torch": Step(
        "make torch-versions",
        "formats, models, checkpoints and offload with the oldest torch, the newest, and those between",
        'make torch-versions TORCH="2.6.0 2.15.0"',
    ),
    "torch-checkpointing": Step(
        f"{INTO}/torch-checkpointing torch-checkpointing --no-deps && PYTHONPATH=build/torch-checkpointing "
        ".venv/bin/pytest -q -m nightly tests/integrations/test_torch_checkpointing.py",
        "the newest torch_checkpointing saves to and loads from fastio's storage",
    ),
    "torchtitan": Step(
        f"{INTO}/torchtitan torchtitan torch-checkpointing torchdata spmd-types --no-deps && "
        f"{INTO}/torchtitan tyro einops && PYTHONPATH=build/torchtitan "
        ".venv/bin/pytest -q -m nightly tests/integrations/test_torchtitan.py",
        "the newest torchtitan's checkpoint manager saves and loads by fastio",
    ),
    "torchft": Step(
        f"{INTO}/torchft torchft --no-deps && "
        f"{INTO}/torchft opentelemetry-sdk opentelemetry-exporter-otlp-proto-http && PYTHONPATH=build/torchft "
        ".venv/bin/pytest -q -m nightly tests/integrations/test_torchft.py",
        "replicas of the newest torchft recover through fastio's files",
    ),
    "deepspeed": Step(
        f"DS_BUILD_OPS=0 {INTO}/deepspeed deepspeed --no-deps --no-build-isolation && "
        f"{INTO}/deepspeed hjson msgpack ninja py-cpuinfo einops pydantic && PYTHONPATH=build/deepspeed "
        ".venv/bin/pytest -q -m nightly tests/integrations/test_deepspeed.py",
        "the newest DeepSpeed saves and loads checkpoints by fastio, on two ranks with each stage of ZeRO",
    ),
    "s3": Step(
        f"{INTO}/s3 s3fs 'moto[server]' && PYTHONPATH=build/s3 .venv/bin/python .ci/s3_tests.py",
        "remote places: saves, loads and checkpoints with a server of S3",
    ),
    "docs": Step("make docs", "the documentation is built without a warning"),
    "wheels": Step(
        "make wheels",
        "wheels for each Python and processor, checked and tried",
        "make wheels WHEELS='--version 3.11 --processor x86_64'",
    ),
}


def main() -> int:
    """Run the steps that were asked for; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "quality.md")
    parser.add_argument("--small", action="store_true", help="each step in a few minutes")
    parser.add_argument("only", nargs="*", choices=[[], *STEPS], help="these steps alone")
    asked = parser.parse_args()
    rows = rows_of(asked.out)
    failed = False
    for name in asked.only or STEPS:
        step = STEPS[name]
        command = (asked.small and step.small) or step.command
        status, rows[name] = run(name, command, step.shows)
        failed |= bool(status)
        asked.out.write_text(page(rows))
    return int(failed)


def run(name: str, command: str, shows: str) -> tuple[int, str]:
    """The exit status of a step, and its row of the table."""
    logs = ROOT / "build" / "nightly"
    logs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with open(logs / f"{name}.log", "w+") as log:
        status = subprocess.run(["bash", "-c", command], cwd=ROOT, stdout=log, stderr=log, check=False).returncode
        log.seek(0)
        words = [line.strip() for line in log if line.strip()]
    minutes = (time.monotonic() - began) / 60
    result = "**failed**" if status else "passed"
    last = re.sub(r"[|`\x1b]", " ", words[-1] if words else "")[:120]
    sys.stdout.write(f"{name}: {result.strip('*')} after {minutes:.1f} minutes; {last}\n")
    sys.stdout.flush()
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return status, f"| {name} | {shows} | {today} | {commit()} | `{command}` | {result} | {minutes:.1f} | `{last}` |"


def commit() -> str:
    """The commit that was tried, ``+`` if files differ from it: the page itself may."""
    asked = ["git", "describe", "--always", "--exclude=*"]
    described = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", ":!docs/quality.md"], cwd=ROOT, check=False)
    return (described or "unknown") + ("+" if changed.returncode else "")


def rows_of(written: Path) -> dict[str, str]:
    """The rows of a page that is there, by step."""
    if not written.is_file():
        return {}
    lines = [line for line in written.read_text().splitlines() if line.count("|") == 9]
    return {name: line for line in lines if (name := line.split("|")[1].strip()) in STEPS}


def page(rows: dict[str, str]) -> str:
    """The page: where it ran, and a row for each step."""
    where = f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} processors"
    head = f"""# Quality

What `make nightly` found when each of its steps ran last; the latest run was on {where}. A
step that is not listed did not run. A `+` behind a commit: some files differed from it.

| step | what it shows | date | commit | command | result | minutes | its last words |
|---|---|---|---|---|---|---|---|
"""
    return head + "\n".join(rows[name] for name in STEPS if name in rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
