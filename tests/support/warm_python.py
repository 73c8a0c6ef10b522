"""Starts ``python -c`` processes by forking a process that has imported torch and fastio: milliseconds, not seconds.

A forked process has the arguments, the environment, the working folder and the pipes of a started one. Variables that
act when a process starts need a forking process of their own, which has them too.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fastio_bench.commands import SUBCOMMANDS

_AT_START = ("LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON")
_IMPORTED = (
    "numpy",
    "pytest",
    "torch",
    "torch._dynamo",  # the first optimizer imports it
    "fastio",
    "fastio.offload",
    *(f"fastio_bench.{module}" for module, _ in SUBCOMMANDS.values()),
    "fastio_bench.harness.fresh_process_child",
    "fastio_bench.offload.training_job",
)
_STARTING = (
    "fastio_bench.harness.children",
    "fastio_bench.checkpoint.child",
    "fastio.checkpoint.writer_process.process",
)
_SERVE = "import sys; sys.path[:] = {path!r}; import warm_python; warm_python.serve({fd})"


class WarmPopen(subprocess.Popen):
    """``subprocess.Popen`` of ``[sys.executable, "-c", code, *arguments]``, forked; it leads a session of its own."""

    def _execute_child(
        self,
        args: list[str],
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Mapping[str, str] | None,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        *pipes_and_more: Any,
    ) -> None:
        pipes = pipes_and_more[:6]
        read, _, _, write, _, write_errors = pipes
        environment = dict(os.environ if env is None else env)
        standard = [own if own != -1 else number for number, own in enumerate((read, write, write_errors))]
        numbers = [0, 1, 2, *pass_fds]
        request = {"code": args[2:], "environment": environment, "folder": str(cwd or os.getcwd()), "numbers": numbers}
        request["blocked"] = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        self._forking = _forking(environment)
        self.pid = self._forking.ask(request, [*standard, *pass_fds])
        self._ended = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if not select.select([self._ended], [], [], 0 if wait_flags else None)[0]:
            return 0, 0
        os.close(self._ended)
        return self.pid, self._forking.ask({"wait": self.pid})

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with self._waitpid_lock:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
        return self.returncode


def run(
    code: str,
    *arguments: str,
    timeout: float = 600,
    folder: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the code in a forked process. It is killed if it does not end within ``timeout`` seconds."""
    command = [sys.executable, "-c", code, *arguments]
    pipe = subprocess.PIPE
    with WarmPopen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=environment) as child:
        try:
            said, complaint = child.communicate(timeout=timeout)
        except BaseException:
            child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, said, complaint)


def running() -> set[int]:
    """The forked processes that have not ended."""
    lists = [Path(f"/proc/{pid}/task/{pid}/children") for pid in (own.pid for own in _started.values())]
    return {int(pid) for path in lists for pid in path.read_text().split()}


def fork_children_of_bench(patch: pytest.MonkeyPatch) -> None:
    """Let fastio-bench fork the Python processes in which it measures."""

    def popen(command: Sequence[str], **settings: Any) -> subprocess.Popen[str]:
        is_python = list(command[:2]) == [sys.executable, "-c"]
        return (WarmPopen if is_python else subprocess.Popen)(command, **settings)

    _replace(patch, types.SimpleNamespace(**{**vars(subprocess), "Popen": popen}))


def start_children_of_bench(patch: pytest.MonkeyPatch) -> None:
    """Undo what :func:`fork_children_of_bench` did."""
    _replace(patch, subprocess)


def _replace(patch: pytest.MonkeyPatch, module: Any) -> None:
    for name in _STARTING:
        patch.setattr(f"{name}.subprocess", module)


class _Forking:
    """A process that has imported everything and forks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", _SERVE.format(path=sys.path, fd=other.fileno())]
        more = {"OPENBLAS_NUM_THREADS": "1"}  # importing numpy must not start threads in a process that forks
        self._process = subprocess.Popen(
            command,
            env={**environment, **more},
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        other.close()
        self._socket, self._lock = own, threading.Lock()

    @property
    def pid(self) -> int:
        """The process that forks."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()

    def ask(self, request: dict[str, Any], descriptors: list[int] | None = None) -> int:
        """Send a request; returns the number that answers it."""
        with self._lock, tempfile.TemporaryFile() as file:  # a message is limited to some 200 KB
            file.write(json.dumps(request).encode())
            file.flush()
            socket.send_fds(self._socket, [b"request"], [file.fileno(), *(descriptors or [])])
            answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError(f"the process that forks ended with status {self._process.wait()}")
        return int(answer)


_started: dict[tuple[tuple[str, str], ...], _Forking] = {}


@atexit.register
def _close() -> None:
    for forking in _started.values():
        forking.close()


def _forking(environment: Mapping[str, str]) -> _Forking:
    key = tuple(sorted(pair for pair in environment.items() if pair[0].startswith(_AT_START)))
    if key not in _started:
        _started[key] = _Forking(environment)
    return _started[key]


def serve(fd: int) -> None:
    """In the process that forks: answer requests until the socket is closed."""
    for name in _IMPORTED:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import started a thread: a forked process could inherit a lock that it holds")
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=fd) as own:
        while True:
            said, descriptors, *_ = socket.recv_fds(own, 64, 16)
            if not said:
                os._exit(0)
            with open(descriptors.pop(0), "rb") as file:
                file.seek(0)
                request = json.loads(file.read())
            number = os.waitpid(request["wait"], 0)[1] if "wait" in request else _fork(own, request, descriptors)
            own.send(str(number).encode())


def _fork(own: socket.socket, request: dict[str, Any], descriptors: list[int]) -> int:
    """Fork; returns the new process once it leads its session."""
    ready, leads = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        own.close()
        _become(request, descriptors, leads)
    os.close(leads)
    os.read(ready, 1)
    for descriptor in (ready, *descriptors):
        os.close(descriptor)
    return pid


def _become(request: dict[str, Any], descriptors: list[int], leads: int) -> None:
    """Run the code as ``python -c`` does, and end the process."""
    status: Any = 1
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 200) for descriptor in [leads, *descriptors]]
        for descriptor in [leads, *descriptors]:
            os.close(descriptor)
        leads = moved.pop(0)
        for number, descriptor in zip(request["numbers"], moved, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(leads)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        code, *arguments = request["code"]
        sys.argv = ["-c", *arguments]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
        status = 0
    except SystemExit as end:
        status = end.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
