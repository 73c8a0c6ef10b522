"""States with two costs of which none is better than another in both: what dynamic programming has to keep. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def undominated(first: Floats, second: Floats, most: int) -> Integers:
    """The indices of states that no other beats or equals in both costs, by ``first``, ascending.

    Of more than ``most`` (2 or more), evenly spaced ones, the two ends among them.
    """
    order = np.lexsort((second, first))
    least = np.minimum.accumulate(second[order])
    kept = order[np.concatenate(([True], second[order][1:] < least[:-1]))]
    if len(kept) > most:
        kept = kept[np.linspace(0, len(kept) - 1, most).round().astype(np.int64)]
    return kept
