"""Passes of Python's garbage collector, rare while DCP plans a save and each rank writes.

The plans of some thousand tensors are objects enough to look like a heap that has grown: in the middle of a save, on
each rank, the collector walks everything that the process has, torch's modules too: a third of a second, for nothing,
as the plans go when the save ends.
"""

from __future__ import annotations

import gc
import weakref

# Young objects that make a pass worth while: more than plans are, few enough to be no burden if an end is late.
_MANY = 1_000_000

_usual = 0  # what the threshold was before


class RarePasses:
    """Passes are rare between ``begin`` and ``end``, at the latest until this is gone.

    Of several that overlap, the first one's end counts for all: that costs time, and nothing else.
    """

    def __init__(self) -> None:
        self._end: weakref.finalize[[], RarePasses] | None = None

    def begin(self) -> None:
        """Rare from now on."""
        global _usual
        young, middle, old = gc.get_threshold()
        if 0 < young < _MANY:  # 0: there are none at all
            _usual = young
            gc.set_threshold(_MANY, middle, old)
        self._end = weakref.finalize(self, _restore)

    def end(self) -> None:
        """As it was before ``begin``. Without one, nothing is done."""
        if self._end is not None:
            self._end()


def _restore() -> None:
    young, middle, old = gc.get_threshold()
    if young == _MANY:  # else somebody has set it meanwhile
        if gc.get_freeze_count() == 0:  # else they are somebody's, who may want them to stay frozen
            gc.freeze()
            gc.unfreeze()  # what came meanwhile is old, without a pass: or the save's last messages would cause one
        gc.set_threshold(_usual, middle, old)
