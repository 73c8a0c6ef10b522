"""Starts child processes in sessions of their own and kills them, with their descendants, when the parent stops."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fastio_bench.harness.interrupts import held

_PIPE = subprocess.PIPE


@contextmanager
def started(command: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a child process in a session of its own; ``settings`` go to ``subprocess.Popen``.

    The end of the block waits for the child. If an error ends the block, the child and its descendants are killed.
    Ctrl-C at the terminal reaches only the parent: otherwise an interrupted child would count as a failed one.
    """
    with ExitStack() as stack:
        with held():
            child = subprocess.Popen(command, start_new_session=True, text=True, errors="surrogateescape", **settings)
            stack.enter_context(child)
            stack.push(lambda kind, *_: kill(child) if kind is not None else None)
        yield child


def completed(command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a child process to its end. Returns its exit status and output."""
    with started(command, stdout=_PIPE, stderr=_PIPE, **settings) as child:
        said, complaint = child.communicate()
    return subprocess.CompletedProcess(command, child.returncode, said, complaint)


def kill(child: subprocess.Popen[str]) -> None:
    """Kill a child that leads a session, and its descendants; then wait until all of them have ended.

    ``waitpid`` does not cover descendants. One with much memory takes a while to die, and until then it keeps files
    open and disk space in use.
    """
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        while _alive(child.pid):
            time.sleep(0.001)


def _alive(group: int) -> bool:
    """Whether any process of the group still runs. A zombie counts as ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its, *_ = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if int(its) == group and state not in "ZX":
            return True
    return False
