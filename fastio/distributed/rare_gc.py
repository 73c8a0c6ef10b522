"""Makes passes of Python's garbage collector rare while DCP plans a save or a load, and each rank writes or reads.

The plans of some thousand tensors are so many objects that, in the middle of a save, the collector of each rank
traverses everything in the process, torch's modules included. That takes a third of a second and frees nothing: the
plans are freed when the save ends.
"""

from __future__ import annotations

import gc
import weakref

# The threshold of young objects meanwhile: more than plans have, and few enough to be harmless if ``end`` comes late.
_MANY = 1_000_000

_usual = 0  # the threshold before ``begin``


class RareGC:
    """Makes passes rare between ``begin`` and ``end``, or until this object is deleted.

    If several overlap, the first ``end`` counts for all, which costs only time.
    """

    def __init__(self) -> None:
        self._end: weakref.finalize[[], RareGC] | None = None

    def begin(self) -> None:
        """Raise the collector's threshold."""
        global _usual
        young, middle, old = gc.get_threshold()
        if 0 < young < _MANY:  # 0 means that the collector is off
            _usual = young
            gc.set_threshold(_MANY, middle, old)
        self._end = weakref.finalize(self, _restore)

    def end(self) -> None:
        """Restore the threshold of before ``begin``; without one, do nothing."""
        if self._end is not None:
            self._end()


def _restore() -> None:
    young, middle, old = gc.get_threshold()
    if young == _MANY:  # otherwise other code set it meanwhile
        if gc.get_freeze_count() == 0:  # otherwise other code froze objects, which must stay frozen
            gc.freeze()
            gc.unfreeze()  # moves new objects to the old generation, or the save's last messages would cause a pass
        gc.set_threshold(_usual, middle, old)
