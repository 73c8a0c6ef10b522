"""The saved tensors of a manager that are in memory and in a store. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterator

from fastio.offload.autograd.saved_tensor import SavedTensor


class Loaded:
    """Saved tensors that were written and still are in memory, were read back, or are being read; oldest first."""

    def __init__(self) -> None:
        self.tensors: dict[int, SavedTensor] = {}  # by index
        self.nbytes = 0

    def add(self, *several: SavedTensor) -> None:
        """Add saved tensors."""
        tensors = self.tensors
        for saved in several:
            if saved.index not in tensors:
                tensors[saved.index] = saved
                self.nbytes += saved.nbytes

    def discard(self, saved: SavedTensor) -> None:
        """Remove a saved tensor, if it is there."""
        if self.tensors.pop(saved.index, None) is not None:
            self.nbytes -= saved.nbytes

    def recount(self) -> None:
        """Count the bytes anew: an interrupt may have come between two lines of the methods above."""
        self.nbytes = sum(saved.nbytes for saved in self)

    def __contains__(self, saved: SavedTensor) -> bool:
        return saved.index in self.tensors

    def __iter__(self) -> Iterator[SavedTensor]:
        return iter(list(self.tensors.values()))
