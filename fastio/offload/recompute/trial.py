"""Recomputes a saved tensor whose bytes are known: does it give the same bits, and how long does it take?"""

from __future__ import annotations

import time

import torch

from fastio.errors import FastIOError
from fastio.offload.autograd.buffer import flat_bytes
from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.recompute.recipe import Materialize, Recipe
from fastio.offload.stores.tiers import ActivationLostError

_RUNS = 3  # the first one may load kernels, and the machine may be busy in another


def tried(
    saved: SavedTensor, recipe: Recipe, materialize: Materialize, storage: torch.UntypedStorage, shift: int
) -> float | None:
    """Return the seconds that a recipe takes; None if it fails, or gives other bits than the storage has.

    Raises ActivationLostError if a tensor that it needs cannot be read back.
    """
    least = float("inf")
    try:
        sources = {source.index: materialize(source) for source in recipe.sources}  # reading them does not count
        for _ in range(_RUNS):
            seconds, made = _timed(saved, recipe, lambda source: sources[source.index])
            least = min(least, seconds)
            if made.nbytes() != saved.source_nbytes:
                return None
            expected = flat_bytes(storage, saved.span.start + shift, saved.nbytes)
            if not torch.equal(flat_bytes(made, saved.span.start, saved.nbytes), expected):
                return None
    except ActivationLostError:
        raise
    except (RuntimeError, FastIOError, MemoryError):  # a modified input, memory that is short, freed parameters
        return None
    return least


def _timed(saved: SavedTensor, recipe: Recipe, materialize: Materialize) -> tuple[float, torch.UntypedStorage]:
    accelerator = saved.accelerator
    if accelerator is None:
        began = time.perf_counter()
        made = recipe.run(materialize, saved.device)
        return time.perf_counter() - began, made
    accelerator.current_stream(saved.device).synchronize()
    origin = accelerator.timed_event(saved.device)
    made = recipe.run(materialize, saved.device)
    ended = accelerator.timed_event(saved.device)
    ended.synchronize()
    return float(origin.elapsed_time(ended)) / 1e3, made
