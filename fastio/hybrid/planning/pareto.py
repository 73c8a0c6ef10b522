"""Pareto-optimal states for dynamic programming with two costs. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def undominated(first: Floats, second: Floats, most: int) -> Integers:
    """Return the indices of states that no other state beats or equals in both costs, ascending by ``first``.

    Of more than ``most`` (2 or more), returns evenly spaced ones, including both ends.
    """
    order = np.lexsort((second, first))
    least = np.minimum.accumulate(second[order])
    kept = order[np.concatenate(([True], second[order][1:] < least[:-1]))]
    if len(kept) > most:
        kept = kept[np.linspace(0, len(kept) - 1, most).round().astype(np.int64)]
    return kept
