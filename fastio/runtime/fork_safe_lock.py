"""Process-wide locks that stay usable in forked children.

A plain lock that another thread holds at the fork would stay locked in the child, which does not have that thread.
"""

from __future__ import annotations

import os
import threading


def lock_across_forks() -> threading.RLock:
    """Returns a lock that is held during every fork: the child gets it free, and the data it guards consistent."""
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
