"""The options of ``fastio-bench io`` and its help, without what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun


@click.command()
@click.option("--rounds", type=click.IntRange(1), help="Rounds of every size, however long they take.")
@click.option("--device", default="cpu", show_default=True, help="Where the tensors lie: cpu, cuda, cuda:1, ...")
@click.option(
    "--tool",
    "chosen",
    multiple=True,
    metavar="NAME",
    help="Only this; may be repeated: uring, posix, torch, numpy, memory, dali, gds, pinned.  "
    "[default: all that dictionaries pick]",
)
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="NAME",
    help="Also durable writes to, and reads from, a volume on an NVMe namespace that is there, such as "
    "vfio:0000:03:00.0 (nvme:, vfio:, spdk:); may be repeated. Objects fastio-bench/... are made in it, and removed.",
)
@common
def io(command: CommandRun, **given: Any) -> None:
    """Bandwidth by tool, size, write and read, cold and warm, and what it costs in processor time.

    The tables 2 to 6 of the Fastensor paper: one tensor of 3.0625 to 1,568 MiB, as (batch, 256, 56, 56) fp32. Says
    beforehand how long it takes and how much disk it needs: within 15 minutes (two with --quick) and 10 GiB, for which
    large sizes get fewer than five rounds (three) where they must.
    """
    from fastio_bench.io.command import io as run

    run(command, **given)
