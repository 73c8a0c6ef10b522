"""Saves and restores the state of the global random generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from fastio import devices


class RandomState:
    """The global generators of Python, NumPy and torch; torch's on the CPU and on every CUDA device.

    Put one into the state to save and restore: ``{"model": model, "random": RandomState()}``.
    """

    def __repr__(self) -> str:
        return "<fastio RandomState: the generators of Python, NumPy and torch>"

    def state_dict(self) -> dict[str, Any]:
        """Return the current state of all generators."""
        numpy_state: Any = np.random.get_state(legacy=True)
        name, key, *rest = numpy_state
        return {
            "python": random.getstate(),
            "numpy": (name, torch.from_numpy(key.astype(np.int64)), *rest),
            "torch": torch.get_rng_state(),
            **{kind: devices.of(kind).random_states() for kind in sorted(devices.all_kinds())},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set all generators to a saved state. States of CUDA devices that this machine lacks are ignored."""
        random.setstate(state["python"])
        name, key, *rest = state["numpy"]
        np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
        torch.set_rng_state(state["torch"].cpu())
        for kind in devices.all_kinds() & state.keys():
            if state[kind]:
                devices.of(kind).set_random_states(state[kind])
