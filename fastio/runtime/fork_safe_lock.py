"""Process-wide locks that stay usable in forked children, and forks that wait for the imports of other threads.

A plain lock that another thread holds at the fork would stay locked in the child, which does not have that thread. So
would Python's own lock of a module that the thread is importing: the child's first use of the module would hang.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from typing import Any

_LONGEST_WAIT = 10.0  # seconds; the import may wait for something that the forking thread holds
_POLL_SECONDS = 0.001
_PACKAGES = {"fastio", "numpy", "rich", "torch"}  # what fastio's functions import when they are first used
_log = logging.getLogger("fastio")

_locks: list[threading.RLock] = []
_of_this_fork = threading.local()


def lock_across_forks() -> threading.RLock:
    """Returns a lock that is held during every fork: the child gets it free, and the data it guards consistent."""
    lock = threading.RLock()
    _locks.append(lock)
    return lock


def _before() -> None:
    """Take all locks while no other thread imports what fastio uses.

    None is held during the wait, since an import may need one.
    """
    end = time.monotonic() + _LONGEST_WAIT
    while True:
        _of_this_fork.locks = tuple(reversed(_locks))
        for lock in _of_this_fork.locks:
            lock.acquire()
        importing = _imports_of_others()
        if not importing:
            return
        if time.monotonic() > end:
            _log.warning(
                "fork: another thread has been importing %s for %g s; if the child hangs at its first use, import it "
                "before the fork", ", ".join(importing), _LONGEST_WAIT,
            )  # fmt: skip
            return
        _after()
        time.sleep(_POLL_SECONDS)


def _after() -> None:
    """Release what this thread's :func:`_before` took: meanwhile others may have made further locks."""
    for lock in reversed(getattr(_of_this_fork, "locks", ())):
        with contextlib.suppress(RuntimeError):  # an interrupt came before it was taken
            lock.release()
    _of_this_fork.locks = ()


def _imports_of_others() -> list[str]:
    """The modules that other threads are importing now. Python has a lock for each, and keeps it for so long only.

    ``__spec__._initializing`` would say it too, but neither which thread imports, nor that it still looks for the file.
    """
    locks: dict[str, Any] = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
    own = threading.get_ident()
    return [
        name
        for name, reference in list(locks.items())
        if name.partition(".")[0] in _PACKAGES and (lock := reference()) is not None and lock.owner != own
    ]


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
