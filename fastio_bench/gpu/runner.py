"""Runs items one after another, each in a process of its own with a timeout, within a total time."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LEAST_S = 5.0  # an item that has less would only import torch
_INTERRUPTED_S = 10.0  # after SIGINT, at which benchmarks write and pytest prints what they have
_DYING_S = 5.0  # after SIGABRT, at which Python prints the stacks of its threads; and again after SIGKILL
_SHOWN = 20  # lines of a failed item's output


@dataclass(frozen=True)
class Item:
    """A command with a timeout. It runs in an empty folder, and the files that it writes to ``out/`` there are kept."""

    name: str
    command: tuple[str, ...]
    seconds: float = 60.0


def run(items: Sequence[Item], limit_s: float, out: Path, scratch: Path, environment: Mapping[str, str]) -> bool:
    """Run items for at most ``limit_s`` seconds; returns whether all of them ran and ended with status 0.

    In ``out``: ``log.txt`` has each item's output as it comes; ``results.jsonl`` has a line for each item when it has
    ended, with its status, its seconds and the lines of JSON that it printed, and a last line with the names of the
    items that were not reached; ``files.tar`` has the files that items left. ``environment`` is set in the items'
    processes. Their folders are in ``scratch``.
    """
    deadline = time.monotonic() + limit_s
    failed = []
    not_reached = [item.name for item in items]
    for item in items:
        left = deadline - time.monotonic()
        if left < _LEAST_S:
            break
        not_reached.remove(item.name)
        if _run_item(item, min(item.seconds, left), out, scratch / item.name, environment) != 0:
            failed.append(item.name)
    _write(out, {"failed": failed, "not reached": not_reached})
    print(f"failed: {', '.join(failed) or 'none'}; not reached: {', '.join(not_reached) or 'none'}", flush=True)
    return not failed and not not_reached


def _run_item(item: Item, seconds: float, out: Path, folder: Path, environment: Mapping[str, str]) -> int | str:
    (folder / "out").mkdir(parents=True)
    started = time.monotonic()
    with (out / "log.txt").open("a+", encoding="utf-8", errors="replace") as log:
        log.write(f"\n==== {item.name}: {shlex.join(item.command)}\n")
        log.flush()
        begin = log.tell()
        status = _status(item, seconds, folder, log, environment)
        taken = round(time.monotonic() - started, 1)
        log.seek(begin)
        said = log.read()
        log.write(f"==== {item.name}: {status}, {taken} s\n")
    _write(out, {"item": item.name, "status": status, "seconds": taken, "figures": _figures(said)})
    print(f"{item.name}: {status}, {taken} s", flush=True)
    for line in said.splitlines()[-_SHOWN:] if status else map(json.dumps, _figures(said)):
        print(f"    {line}", flush=True)
    if any((folder / "out").iterdir()):
        with tarfile.open(out / "files.tar", "a") as archive:
            archive.add(folder / "out", item.name)
    shutil.rmtree(folder, ignore_errors=True)
    return status


def _status(item: Item, seconds: float, folder: Path, log: Any, environment: Mapping[str, str]) -> int | str:
    """The exit status of an item, negative for a signal, or the reason why there is none."""
    child = None
    try:
        with _signals_delayed():  # a child that was started and not recorded would outlive this process
            child = subprocess.Popen(
                item.command,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _ended(child, seconds)
    except OSError as error:
        return f"not started: {error}"
    finally:
        if child is not None:
            _signal(child, signal.SIGKILL)  # its descendants too
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process inside the driver may not die
                child.wait(_DYING_S)


def _ended(child: subprocess.Popen[bytes], seconds: float) -> int | str:
    """Wait for the child for that long; then interrupt and abort it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    for number, patience in ((signal.SIGINT, _INTERRUPTED_S), (signal.SIGABRT, _DYING_S)):
        _signal(child, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
            break
    return f"ended after its {seconds:.0f} s"


@contextlib.contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delay SIGINT and SIGTERM to the end of the block."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for again in came:
        signal.raise_signal(again)


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _figures(said: str) -> list[Any]:
    """The lines of an output that are JSON objects."""
    found = []
    for line in said.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def _write(out: Path, line: dict[str, Any]) -> None:
    with (out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
