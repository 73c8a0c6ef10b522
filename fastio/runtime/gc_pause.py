"""Pauses Python's garbage collector while many long-lived objects are created."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector inside the context, process-wide.

    Pickling or unpickling 10,000 tensors creates 400,000 objects, which the collector scans again and again: a third of
    the time of a save, measured. At the end the new objects alone are looked at. Otherwise their number would start a
    collection of all, which takes 80 ms where torch was just imported, as long as a load of 600 MB.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        gc.enable()
