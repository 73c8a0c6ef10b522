"""Trains a network step by step in this process, so that steps of several ways can be interleaved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fastio_bench.offload import training_ways
from fastio_bench.workloads import training_models
from fastio_bench.workloads.training_models import Size

PLAIN, TO_HOST, TO_DISK = "no offload", "offload to host memory", "offload to disk"
_WARM_UP = 3  # steps: one is profiled, one planned, one settled
_LEARNING_RATE, _MOMENTUM = 0.01, 0.9
_HOST_BUDGET = 4 << 30  # more than any size here saves: everything goes to host memory
# Without a codec: that would compete with the load processes for processor time.
_EVERYTHING = {"policy": "all", "codec": "none"}
_SETTINGS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    TO_HOST: {**_EVERYTHING, "host_budget": _HOST_BUDGET},
    TO_DISK: _EVERYTHING,
}
WAYS = tuple(_SETTINGS)


class Training:
    """One network, trained in the way of that name; offloaded tensors lie below ``folder``.

    The constructor runs the first steps, in which offload profiles and plans.
    """

    def __init__(self, name: str, size: Size, folder: Path) -> None:
        self.name = name
        self._training = training_models.make(size.architecture, size.batch, size.depth, size.width)
        parameters = self._training.model.parameters()
        self._optimizer = torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=_MOMENTUM, foreach=False)
        place = folder / f"{WAYS.index(name)}"
        place.mkdir()
        kind = training_ways.PLAIN if name == PLAIN else _EVERYTHING["policy"]
        self._way = training_ways.make(kind, self._training.model, place, _SETTINGS[name])
        self._moved = self._stored = 0
        try:
            for _ in range(_WARM_UP):
                self.step()
        except BaseException:
            self.close()
            raise

    def step(self) -> str:
        """Run one step. Then :attr:`moved` has the bytes that left memory in it."""
        with self._way.forward():
            loss = self._training.loss()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        before, self._stored = self._stored, self._written()
        self._moved = self._stored - before
        return ""

    @property
    def moved(self) -> int:
        """The bytes that the latest step moved out of memory."""
        return self._moved

    def close(self) -> None:
        """Free everything."""
        self._way.close()

    def _written(self) -> int:
        report = self._way.report()
        return sum(traffic.written_bytes for traffic in report.traffic.values()) if report is not None else 0
