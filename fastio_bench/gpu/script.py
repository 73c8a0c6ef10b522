"""What the scripts of this folder share: their arguments, their device, its clock, and the line that they print."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from fastio import devices


class Script:
    """The device that ``--device`` names, and the script's options, with their defaults, as ``given``."""

    def __init__(self, arguments: Sequence[str] | None, about: str | None, **options: int | float | str) -> None:
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--device", default="cuda")
        for name, default in options.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
        self.given = parser.parse_args(arguments)
        accelerator = devices.find(self.given.device)
        if accelerator is None:
            sys.exit(f"--device {self.given.device}: expected one of {', '.join(sorted(devices.all_kinds()))}")
        if not accelerator.is_available():
            sys.exit(f"--device {self.given.device}: {'; '.join(accelerator.why_unavailable())}")
        self.accelerator = accelerator
        self.device = accelerator.with_index(torch.device(self.given.device))

    def synchronize(self) -> None:
        """Wait for the device."""
        self.accelerator.synchronize(self.device)

    def seconds(self, call: Callable[[], object], rounds: int = 1) -> float:
        """The median time of a call, from an idle device to an idle device."""
        taken = []
        for _ in range(rounds):
            self.synchronize()
            began = time.perf_counter()
            call()
            self.synchronize()
            taken.append(time.perf_counter() - began)
        return median(taken)

    def tell(self, **figures: Any) -> None:
        """Print the device, the options and the figures as a line of JSON."""
        simulated = self.accelerator.kind == "simulated"
        told = {
            "device": "simulated device" if simulated else self.accelerator.identity(self.device),
            **{name: value for name, value in vars(self.given).items() if name not in ("device", "dir", "out")},
            **figures,
        }
        print(json.dumps(told), flush=True)
