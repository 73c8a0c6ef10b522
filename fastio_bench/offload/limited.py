"""Trains a paper's network in the limited memory of the simulated device."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fastio
from fastio_bench.workloads.paper_networks import PaperNetwork


@dataclass(frozen=True)
class Trained:
    """What is on the device after the last step, in bytes, without the inputs, and the gradients, on the CPU."""

    fixed: int
    gradients: list[torch.Tensor]


class LimitedTraining:
    """Trains a network on the device, with the device's memory limited to the network's."""

    def __init__(self, device: torch.device, folder: Path, network: PaperNetwork) -> None:
        self.network = network
        self._device, self._folder = device, folder

    def train(self, batch: int, depth: int, steps: int, settings: Mapping[str, Any] | None) -> Trained | str:
        """Train some steps from the same weights. Returns the last one, or how memory ran out.

        ``settings``: of :class:`fastio.Offload`; None for plain training.
        """
        from fastio.devices import simulated

        gc.collect()
        module = torch.get_device_module(self._device)
        module.empty_cache()
        _, before = module.mem_get_info(self._device)
        simulated.configure(self._device.index, memory_limit=self.network.memory)
        try:
            return self._train(batch, depth, steps, settings)
        except torch.OutOfMemoryError as error:
            return str(error).splitlines()[0]
        finally:
            simulated.configure(self._device.index, memory_limit=before)

    def _train(self, batch: int, depth: int, steps: int, settings: Mapping[str, Any] | None) -> Trained:
        with ExitStack() as stack:
            around: Any = nullcontext()
            if settings is not None:
                around = fastio.Offload(store=self._folder, **settings)
                stack.callback(around.close)
            torch.manual_seed(0)
            model = self.network.build(depth).to(self._device)
            optimizer = self.network.optimizer(model.parameters())
            inputs = self.network.examples(batch).to(self._device)
            targets = torch.zeros(batch, dtype=torch.int64, device=self._device)
            for _ in range(steps):
                optimizer.zero_grad()
                with around:
                    loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
                del loss
            gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
            fixed = torch.get_device_module(self._device).memory_allocated(self._device)
            return Trained(fixed - inputs.nbytes, gradients)
