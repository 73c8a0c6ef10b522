"""Child processes: started so that signals to the whole group are their parent's alone, and gone when it is."""

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
    """A child process in a session of its own; ``settings`` go to ``subprocess.Popen``.

    At the end of the block it is waited for, or killed with all that it started, where an error ends it. Ctrl-C at the
    terminal reaches the parent alone: a child that it ends too would look as if it had failed.
    """
    with ExitStack() as stack:
        with held():
            child = subprocess.Popen(command, start_new_session=True, text=True, errors="surrogateescape", **settings)
            stack.enter_context(child)
            stack.push(lambda kind, *_: kill(child) if kind is not None else None)
        yield child


def completed(command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    """A child's exit status and what it said, once it has ended."""
    with started(command, stdout=_PIPE, stderr=_PIPE, **settings) as child:
        said, complaint = child.communicate()
    return subprocess.CompletedProcess(command, child.returncode, said, complaint)


def kill(child: subprocess.Popen[str]) -> None:
    """End a child that leads a session, and whatever it started; then wait until all of them have ended.

    What a child started is not ours to wait for, and takes its time to die, as long as its memory is large: until then
    it keeps files open, and space on the disk.
    """
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        while _alive(child.pid):
            time.sleep(0.001)


def _alive(group: int) -> bool:
    """Whether any process of a group has not ended yet; one whose status nobody asked for yet has ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its, *_ = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if int(its) == group and state not in "ZX":
            return True
    return False
