"""Child processes: started so that signals to the whole group are their parent's alone, and gone when it is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fastio.bench.interrupts import held

_PIPE = subprocess.PIPE


@contextmanager
def started(command: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A child process in a session of its own; ``settings`` go to ``subprocess.Popen``.

    At the end of the block it is waited for, or killed with all that it started, where an error ends it. Ctrl-C at the
    terminal reaches the parent alone: a child that it ends too would look as if it had failed.
    """
    with ExitStack() as stack:
        with held():
            child = subprocess.Popen(command, start_new_session=True, text=True, **settings)
            stack.enter_context(child)
            stack.push(lambda kind, *_: kill(child) if kind is not None else None)
        yield child


def completed(command: Sequence[str], **settings: Any) -> subprocess.CompletedProcess[str]:
    """A child's exit status and what it said, once it has ended."""
    with started(command, stdout=_PIPE, stderr=_PIPE, **settings) as child:
        said, complaint = child.communicate()
    return subprocess.CompletedProcess(command, child.returncode, said, complaint)


def kill(child: subprocess.Popen[str]) -> None:
    """End a child that leads a session, and whatever it started; then wait for it."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
