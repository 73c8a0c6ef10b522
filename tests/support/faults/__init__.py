"""Runs programs in forked processes under a library that makes system calls fail.

A test makes the :class:`Server` run a function of :mod:`faults.programs` in a fresh process. The server imports torch
and fastio once and forks for each request, so a process costs milliseconds instead of seconds.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

SHORTER = -1  # the call transfers fewer bytes than the program requested
NOTHING = -2  # the call moves no bytes and returns 0
ALWAYS = 1 << 40


@dataclass(frozen=True)
class Fault:
    """Makes calls number ``first``, ``first + 1``, ... (``times`` of them) of a class of calls fail; see shim.c."""

    call: str
    effect: int
    first: int = 1
    times: int = 1

    def __str__(self) -> str:
        effect = {SHORTER: "short", NOTHING: "zero"}.get(self.effect) or errno.errorcode.get(self.effect, self.effect)
        return f"{self.call}{'s' if self.times == ALWAYS else self.first}-{effect}"


@dataclass(frozen=True)
class Outcome:
    """A child's status (0, an exit status, or minus a signal), its program's result, and its stderr."""

    status: int
    result: Any = field(repr=False)
    stderr: str = field(repr=False)


def build_shim(compiler: str, folder: Path) -> Path:
    """Compile shim.c."""
    library = folder / "shim.so"
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, str(Path(__file__).with_name("shim.c")), "-o", str(library), "-ldl"], check=True)
    return library


class Child:
    """A running program. ``pid`` may be killed."""

    def __init__(self, server: Server, pid: int, base: Path) -> None:
        self.pid = pid
        self._server = server
        self._base = base

    def killed_after(self, seconds: float) -> str:
        """Kill it after some seconds, and wait for its end; returns when it was, in words."""
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGKILL)
        outcome, when = self.wait(), f"killed {seconds * 1e6:.0f} us"
        assert outcome.status == -signal.SIGKILL, f"{when} later: {outcome.stderr}"
        return when

    def wait(self) -> Outcome:
        """Wait for its end; returns its outcome."""
        status = int(self._server.ask({"wait": self.pid})["status"])
        result = self._base.with_suffix(".json")
        stderr = self._base.with_suffix(".err")
        return Outcome(
            status,
            json.loads(result.read_text()) if status == 0 else None,
            stderr.read_text(errors="replace") if stderr.exists() else "",
        )


class Server:
    """Forks a child for every program; a context manager."""

    def __init__(self, folder: Path, library: Path | None) -> None:
        self._folder = folder
        self._count = 0
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            "OPENBLAS_NUM_THREADS": "1",  # importing numpy must not start threads in a process that forks
        }
        if library is not None:
            environment["LD_PRELOAD"] = str(library)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,  # not the root of the repository, whose package has no native part
            env=environment,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request; returns the reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the server of child processes ended with status {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def prepare(self, version: int, nbytes: int, form: str = "pt") -> None:
        """Create that object before further forks, so that every child has it."""
        self.ask({"make": [version, nbytes, form]})

    def prepare_training(self) -> None:
        """Run a first training and checkpoint before further forks, so that every child has their imports."""
        self.ask({"warm_up": True})

    def start(self, program: str, timeout: float = 600, **arguments: Any) -> Child:
        """Start ``faults.programs.<program>(**arguments)``; "checkpoints.<program>" is one of ``faults.checkpoints``.

        After ``timeout`` seconds it dumps its stacks and exits.
        """
        self._count += 1
        base = self._folder / f"child{self._count}"
        request = {"program": program, "arguments": arguments, "base": str(base), "timeout": timeout}
        return Child(self, int(self.ask(request)["pid"]), base)

    def run(self, program: str, *faults: Fault, **arguments: Any) -> Any:
        """Run a program under faults; returns its result. A status other than 0 fails the test."""
        if faults:
            arguments["faults"] = [asdict(fault) for fault in faults]
        outcome = self.start(program, **arguments).wait()
        if outcome.status != 0:
            pytest.fail(f"{program} ended with status {outcome.status}\n{outcome.stderr}")
        return outcome.result

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it
