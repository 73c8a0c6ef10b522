"""The options of ``fastio-bench hybrid`` and its help, without what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import as_some_bytes, common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun


@click.command()
@click.option("--optimizer-store", "store", is_flag=True, help="Instead: AdamW with its state on disk, measured.")
@click.option("--ranks", is_flag=True, help="Instead: two ranks on the CPU that share one host copy, measured.")
@click.option(
    "--device",
    type=click.Choice(("cuda", "simulated")),
    help="Instead: a step there, by each way. The simulated accelerator is built first, once, in about a minute.",
)
@click.option(
    "--parameters", metavar="SIZE", callback=as_some_bytes, help="Of the model.  [default: 1.2GB; ranks: 200MB]"
)
@click.option("--steps", type=click.IntRange(2), help="Steps to train; 20, with --quick 5.")
@common
def hybrid(command: CommandRun, **given: Any) -> None:
    """Hybrid training: speed and memory against ZeRO-Offload, and the optimizer's state on disk."""
    from fastio_bench.hybrid.command import hybrid as run

    run(command, **given)
