"""Locks of the process that a fork does not leave locked: by a thread that the child does not have, it would be."""

from __future__ import annotations

import os
import threading


def lock_across_forks() -> threading.RLock:
    """A lock that whoever forks holds meanwhile, so that the child finds what it guards whole, and the lock free."""
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
