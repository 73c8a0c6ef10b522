"""The generators that a training draws from, as one more thing with a state."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class RandomState:
    """The global generators of Python, NumPy and torch, the last on the CPU and on every CUDA device.

    Put one into what is saved and restored: ``{"model": model, "random": RandomState()}``.
    """

    def state_dict(self) -> dict[str, Any]:
        """Where they all are now."""
        by_numpy: Any = np.random.get_state(legacy=True)
        name, key, *rest = by_numpy
        return {
            "python": random.getstate(),
            "numpy": (name, torch.from_numpy(key.astype(np.int64)), *rest),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. A CUDA device that is not here now is left out."""
        random.setstate(state["python"])
        name, key, *rest = state["numpy"]
        np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
        torch.set_rng_state(state["torch"].cpu())
        for number, generator in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(generator.cpu(), number)
