"""The ways to train on a device: plain, fastio's, torchtune's and torch's own. Each is made once for all rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
import torch
from torch.autograd.graph import save_on_cpu

import fastio
from fastio import devices
from fastio.offload import BlockStore, ToolStore
from fastio_bench.offload.pinned_copies import PinnedCopies
from fastio_bench.offload.training_ways import TOOL

PLAIN, SIMPLEST, SAVE_ON_CPU = "plain", "torchtune's method", "save_on_cpu, pinned"
SIMULATED = "simulated"

Around = Callable[[], AbstractContextManager[Any]]
"""Makes the context of one forward pass."""


def ready(kind: str) -> torch.device:
    """The first device of that kind, ready for use. Raises click.UsageError, with the cure, where there is none.

    The simulated one begins its work at once and checks nothing, so that times are those of the host and the model.
    """
    if kind == SIMULATED:
        from fastio.devices import simulated  # not built for those who measure something else

        try:
            simulated.use()
        except fastio.ToolUnavailableError as error:
            raise click.UsageError(f"--device {kind}: {error.reason}; {error.cure}") from error
        simulated.configure_execution("never", check_order=False, poison=False)
    accelerator = devices.of(kind)
    if not accelerator.is_available():
        raise click.UsageError(f"--device {kind}: {'; '.join(accelerator.why_unavailable())}")
    return torch.device(kind, 0)


def named(name: str) -> str:
    """The row of fastio's way of that name."""
    return f"fastio, {name}"


@contextmanager
def opened(device: torch.device, folder: Path, own: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Around]]:
    """The ways by name. ``own``: fastio's, by name, with the settings of each :class:`fastio.Offload`."""
    with ExitStack() as stack:

        def offload(settings: Mapping[str, Any]) -> Around:
            store: Any = folder
            if TOOL in settings:
                store = stack.enter_context(ToolStore(folder, settings[TOOL]))
            elif device.type == SIMULATED and settings.get("host_budget"):
                # Modelled time has no disk: one that the device reached would be the faster way for the same bytes.
                store = stack.enter_context(BlockStore(folder, driver="threads"))
            made = fastio.Offload(store=store, **{name: one for name, one in settings.items() if name != TOOL})
            stack.callback(made.close)
            return lambda: made

        yield {
            PLAIN: nullcontext,
            **{named(name): offload(settings) for name, settings in own.items()},
            SIMPLEST: lambda: PinnedCopies(device),
            SAVE_ON_CPU: lambda: save_on_cpu(pin_memory=True),
        }
