"""The options of ``fastio-bench peers`` and its help, without what it runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun

WORKLOADS = ("bert-large", "tensor-784", "tensor-12.25", "tensor-3.0625", "small-tensors")
PEERS = (
    "torch",
    "torch, no CRC",
    "torch, huge pages",
    "torch, mmap",
    "safetensors",
    "numpy",
    "DCP",
    "DALI",
    "fastsafetensors",
    "runai-model-streamer",
    "torchsnapshot",
    "DeepNVMe",
    "TensorNVMe",
    "fastio",
    "fastio, unverified",
)
WORKS = ("durable save", "save", "cold load", "warm load")


@click.command()
@click.option("--rounds", type=click.IntRange(1), help="Rounds, however long they take; 5, with --quick up to 3.")
@click.option("--workload", "names", multiple=True, type=click.Choice(WORKLOADS), help="Only this; may be repeated.")
@click.option(
    "--tool",
    "chosen",
    multiple=True,
    type=click.Choice(PEERS),
    metavar="NAME",
    help=f"Only this; may be repeated: {'; '.join(PEERS)}.",
)
@click.option("--work", "works", multiple=True, type=click.Choice(WORKS), help="Only this; may be repeated.")
@partial(common, quick="torch and fastio alone, no other library; one workload, as many rounds as two minutes allow.")
def peers(command: CommandRun, **given: Any) -> None:
    """The same work with other libraries and with fastio, the limits of disk and memory, and fastio's goals.

    torch and, without --quick, safetensors, numpy, DCP and DALI, and fastsafetensors, runai-model-streamer,
    torchsnapshot, DeepNVMe and TensorNVMe where they are installed (pip install '.[peers]' in a clone has those that
    need no compiler). Each works in the fastest mode that its documentation names; the settings are shown. Loads run in
    fresh processes, and what they load is compared with what was saved.
    """
    from fastio_bench.peers.command import peers as run

    run(command, **given)
