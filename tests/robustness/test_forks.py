"""Forks while other threads save and load: locks of those threads do not stay locked in the child."""

from __future__ import annotations

from pathlib import Path

import pytest

import warm_python

PARENT = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # about forks in a process with threads, which this tests
import torch
import fastio

path = sys.argv[1]
fastio.save({"a": torch.ones(1 << 14)}, path)
ended = threading.Event()

def work(number):
    while not ended.is_set():
        with fastio.record():
            fastio.load(path)
            fastio.save(torch.ones(1 << 12), f"{path}.{number}", durable=False)

threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
hung = 0
for _ in range(60):
    child = os.fork()
    if not child:
        fastio.load(path)
        os._exit(0)
    until = time.monotonic() + 300
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.001)
        if time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            hung += 1
            break
    if hung:
        break
ended.set()
for thread in threads:
    thread.join()
sys.exit("a child hung" if hung else 0)
"""


def test_forked_children_load_without_hanging(tmp_path: Path) -> None:
    child = warm_python.run(PARENT, str(tmp_path / "a.pt"), timeout=600)
    assert child.returncode == 0, child.stderr


GUARDED = """
import importlib, os, sys, threading
import fastio

lock = importlib.import_module(sys.argv[1])._lock
held, release = threading.Event(), threading.Event()

def hold():
    with lock:
        held.set()
        release.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
threading.Timer(0.2, release.set).start()
child = os.fork()  # waits for the thread
if not child:
    os._exit(0 if lock.acquire(timeout=300) else 1)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("module", ["results", "torch_patch", "transports.registry", "integrations.safetensors_patch"])
def test_a_fork_waits_for_what_threads_hold(module: str) -> None:
    code = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + GUARDED
    child = warm_python.run(code, f"fastio.{module}")
    assert child.returncode == 0, child.stderr


IMPORTING = """
import os, signal, sys, threading, warnings
from importlib.machinery import PathFinder
warnings.simplefilter("ignore", DeprecationWarning)
import fastio
from fastio.runtime import fork_safe_lock

begun, going_on = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name != "fastio.inspect.diff":
            return None
        spec = PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (begun.set(), going_on.wait(), run(module))
        return spec

sys.modules.pop("fastio.inspect.diff", None)
sys.meta_path.insert(0, Slow())
"""

LAZY = (
    IMPORTING
    + """
thread = threading.Thread(target=lambda: fastio.diff)
thread.start()
begun.wait()
threading.Timer(0.2, going_on.set).start()
child = os.fork()  # waits for the import
if not child:
    signal.alarm(60)
    fastio.diff
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
)


def test_a_fork_waits_for_imports_of_other_threads() -> None:
    child = warm_python.run(LAZY)
    assert child.returncode == 0, child.stderr


ENDLESS = (
    IMPORTING
    + """
fork_safe_lock._LONGEST_WAIT = 0.1
threading.Thread(target=lambda: fastio.diff).start()
begun.wait()
child = os.fork()
if not child:
    os._exit(0)
going_on.set()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
)


def test_a_fork_does_not_wait_for_an_import_that_waits_for_it() -> None:
    child = warm_python.run(ENDLESS)
    assert child.returncode == 0, child.stderr
    assert "another thread has been importing fastio.inspect.diff" in child.stderr


MEANWHILE = """
import os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from fastio.runtime import fork_safe_lock

def make_lock():
    thread = threading.Thread(target=fork_safe_lock.lock_across_forks)
    thread.start()
    thread.join()

# Python calls the functions before a fork in the reverse order: this one after fastio's.
fork_safe_lock._imports_of_others, check = lambda: make_lock() or check(), fork_safe_lock._imports_of_others
child = os.fork()
if not child:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_lock_that_is_made_during_a_fork_is_not_released() -> None:
    child = warm_python.run(MEANWHILE)
    assert (child.returncode, child.stderr) == (0, "")
