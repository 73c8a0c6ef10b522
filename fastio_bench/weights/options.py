"""The options of ``fastio-bench weights`` and its help, without what it runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import as_some_bytes, common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun

SIZE, QUICK_SIZE = "2.5GB", "640MB"
WORKS = ("into a module", "one rank's slices", "one small tensor", "all, streamed", "save", "pt into safetensors")
TOOLS = (
    "safetensors",
    "torch, mmap",
    "fastsafetensors",
    "runai-model-streamer",
    "fastio",
    "fastio, atomic",
    "fastio.load",
)


@click.command()
@click.option("--model", "name", type=click.Choice(["llama", "experts"]), default="llama", show_default=True)
@click.option("--size", callback=as_some_bytes, help=f"Bytes of the Llama; {SIZE}, with --quick {QUICK_SIZE}.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds; 5, with --quick 3.")
@click.option("--work", "works", multiple=True, type=click.Choice(WORKS), help="Only this; may be repeated.")
@click.option(
    "--tool", "tools", multiple=True, type=click.Choice(TOOLS), metavar="NAME", help=f"Only: {'; '.join(TOOLS)}."
)
@partial(common, quick="A model of 640 MB, and fewer rounds: a few minutes.")
def weights(command: CommandRun, **given: Any) -> None:
    """Sharded safetensors into a module, one rank's slices, one small tensor, a stream of all, saves, and conversions.

    Each call runs in a fresh process, and what it gave is compared with what was saved.
    """
    from fastio_bench.weights.command import weights as run

    run(command, **given)
