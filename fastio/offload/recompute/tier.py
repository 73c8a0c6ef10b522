"""The tier of saved tensors that are not stored: backward computes them again."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict

from fastio._native import Releases
from fastio.offload.autograd.buffer import Buffer
from fastio.offload.autograd.saved_tensor import SavedTensor, State, used_on_current_stream
from fastio.offload.recompute.recipe import Materialize, Recipe
from fastio.offload.report import Counts
from fastio.offload.stores.tiers import Loaded


class RecomputeTier:
    """Drops saved tensors and makes them again. The manager holds its lock around every call.

    ``materialize`` is a weak reference to the manager's method. ``releases`` gets what no recipe needs any more.
    ``readers``: by storage (``_cdata``), the indices of the saved tensors that are made from its bytes.
    """

    def __init__(
        self, materialize: weakref.WeakMethod[Materialize], releases: Releases, counts: Counts, loaded: Loaded
    ) -> None:
        self._materialize = materialize
        self.releases = releases
        self._counts = counts
        self._loaded = loaded
        self.readers: defaultdict[int, set[int]] = defaultdict(set)

    def move_out(self, saved: SavedTensor, recipe: Recipe) -> None:
        """Drop the bytes of a saved tensor."""
        saved.recipe = recipe
        recipe.hold(self.releases)
        for storage in recipe.storages:
            self.readers[storage].add(saved.index)
        saved.tier = self
        saved.state = State.RECOMPUTED
        saved.live = None

    def cancel(self, saved: SavedTensor) -> None:
        """Nothing: no transfer is pending."""

    def fetch(self, *several: SavedTensor) -> None:
        """Nothing: the bytes are computed when they are needed."""

    def bring(self, saved: SavedTensor) -> None:
        """Compute the bytes. Raises ChangedInputError, ActivationLostError and what the operators raise."""
        recipe, materialize = saved.recipe, self._materialize()
        assert recipe is not None, "move_out gave it one"
        assert materialize is not None, "handles keep the manager"
        sources = {source.index: materialize(source) for source in recipe.sources}
        if saved.accelerator is not None:
            for storage, _ in sources.values():
                used_on_current_stream(storage)
        began = time.perf_counter()
        storage = recipe.run(lambda source: sources[source.index], saved.device)
        if storage.nbytes() != saved.source_nbytes:
            raise RuntimeError(
                f"saved tensor {saved.ordinal} of forward pass {saved.step.number} was recomputed with "
                f"{storage.nbytes()} bytes: expected {saved.source_nbytes}"
            )
        if saved.accelerator is not None:
            saved.home = saved.accelerator.current_stream(saved.device)
            saved.ready = saved.accelerator.mark(saved.device)
        saved.buffer = Buffer(storage, saved.span.start)
        saved.state = State.RESIDENT
        self._loaded.add(saved)
        self._counts.recomputed += 1
        self._counts.recomputed_bytes += saved.nbytes
        self._counts.recompute_s += time.perf_counter() - began

    def keep(self, saved: SavedTensor) -> None:
        """Have the bytes now, and keep them until the graph releases them."""
        materialize = self._materialize()
        assert materialize is not None, "handles keep the manager"
        storage, shift = materialize(saved)
        self._forget_readers(saved)
        self._loaded.discard(saved)
        if saved.buffer is None and saved.home is None:  # as forward made it
            saved.live = storage
        elif saved.buffer is None:
            saved.buffer = Buffer(storage, saved.span.start + shift)
        saved.state = State.RESIDENT
        saved.tier = None
        self.release(saved)

    def unload(self, saved: SavedTensor) -> None:
        """Drop the bytes of a tensor in ``loaded``."""
        saved.release_bytes()
        saved.state = State.RECOMPUTED
        self._loaded.discard(saved)

    def drop(self, saved: SavedTensor) -> None:
        """Forget a tensor that the graph released."""
        self._forget_readers(saved)
        self.unload(saved)

    def release(self, saved: SavedTensor) -> None:
        """Let go of what a saved tensor was to be made from."""
        recipe, saved.recipe = saved.recipe, None
        if recipe is not None:
            recipe.holds.clear()

    def _forget_readers(self, saved: SavedTensor) -> None:
        for storage in () if saved.recipe is None else saved.recipe.storages:
            readers = self.readers.get(storage)
            if readers is not None:
                readers.discard(saved.index)
                if not readers:
                    del self.readers[storage]
