"""Chooses the algorithm of each convolution of a pass, right before it computes: under policy "vdnn-dyn".

The algorithms (m) and (p) of vDNN, section III-C.
"""

from __future__ import annotations

import torch

from fastio.devices import Accelerator
from fastio.offload.planning.layers import BackwardLayers
from fastio.offload.planning.trials import Trials
from fastio.offload.planning.vdnn import CONV


class ConvolutionAlgorithms:
    """Follows the layers of a pass. In forward, an operator saves its inputs before it computes."""

    def __init__(
        self, trials: Trials, layers: BackwardLayers, accelerator: Accelerator, device: torch.device, nbytes: list[int]
    ) -> None:
        self._trials = trials
        self._layers = layers
        self._accelerator = accelerator
        self._device = device
        self._nbytes = nbytes  # of the saved tensors
        self._next = len(layers.kinds)  # the layer before, by its place in backward; -1: not as recorded
        self._current: int | None = None  # in backward

    def saved(self, ordinal: int) -> None:
        """In forward, an operator begins, and saves this tensor."""
        layer = self._next - 1
        if layer < 0 or ordinal not in self._layers.inputs[layer]:
            self._next = -1
            self.end()
            return
        self._next = layer
        self._begin(layer)

    def used(self, place: int) -> None:
        """In backward, a saved tensor is used, at this place of the recorded order."""
        layer = self._layers.of_use.get(place)
        if layer != self._current:
            self._current = layer
            if layer is None:
                self.end()
            else:
                self._begin(layer)

    def end(self) -> None:
        """The latest convolution was issued."""
        self._trials.running = None
        self.release()

    def release(self) -> None:
        """Let torch's own settings hold again. Which convolution was issued last stays known."""
        self._accelerator.end_convolution()

    def _begin(self, layer: int) -> None:
        self.end()
        if self._layers.kinds[layer] == CONV:
            self._trials.running = layer
            nbytes = max(self._nbytes[ordinal] for ordinal in self._layers.inputs[layer])
            self._accelerator.begin_convolution(self._device, nbytes, self._trials.is_fastest(layer))
