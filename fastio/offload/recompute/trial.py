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
) -> tuple[float | None, float]:
    """Return the seconds that a recipe takes, and those of the trial, without reading what the recipe needs.

    None if it fails, or gives other bits than the storage has.

    Raises ActivationLostError if a tensor that it needs cannot be read back.
    """
    least = float("inf")
    began = time.perf_counter()
    try:
        sources = {source.index: materialize(source) for source in recipe.sources}
        began = time.perf_counter()
        for _ in range(_RUNS):
            seconds, made = _timed(saved, recipe, lambda source: sources[source.index])
            least = min(least, seconds)
            if made.nbytes() != saved.source_nbytes:
                return None, time.perf_counter() - began
            expected = flat_bytes(storage, saved.span.start + shift, saved.nbytes)
            if not torch.equal(flat_bytes(made, saved.span.start, saved.nbytes), expected):
                return None, time.perf_counter() - began
    except ActivationLostError:
        raise
    except (RuntimeError, FastIOError, MemoryError):  # a modified input, memory that is short, freed parameters
        return None, time.perf_counter() - began
    return least, time.perf_counter() - began


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
