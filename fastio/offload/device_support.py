"""Whether what a user asked of an Offload is possible with the tensors of a device, before one of them moves."""

from __future__ import annotations

from typing import Any

import torch

from fastio import devices
from fastio.offload.codecs.encoding import Codec, require


class DeviceSupport:
    """What an Offload needs for the tensors of a device: the codec's kernels, and a tool that moves its memory.

    A store with a method ``require_device(device)`` raises there if it cannot take the memory of a device.
    """

    def __init__(self, codec: Codec, store: Any) -> None:
        self.found: set[devices.Accelerator | None] = set()  # for which all is there; None: the CPU
        self._codec = codec
        self._require_of_store = getattr(store, "require_device", None)

    def require(self, device: torch.device) -> None:
        """Raise ToolUnavailableError if something that was asked for is not possible with tensors of a device."""
        require(self._codec, device)
        if self._require_of_store is not None:
            self._require_of_store(device)
        self.found.add(devices.find(device))

    def require_for(self, model: torch.nn.Module | None) -> None:
        """As :meth:`require`, for the accelerators that a model is on. On the CPU it may not be where it computes."""
        if model is not None and not self.found:
            for device in {parameter.device for parameter in model.parameters()}:
                if devices.find(device) is not None:
                    self.require(device)
