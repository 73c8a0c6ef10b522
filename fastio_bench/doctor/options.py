"""The options of ``fastio-bench doctor`` and its help, without what it runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun


@click.command()
@partial(common, quick="Fewer rounds of the disk's limit: some seconds in all.")
def doctor(command: CommandRun, **given: Any) -> None:
    """What is here and what is not, the path that bytes really take, NVMe controllers, and the limit of the disk.

    Takes about fifteen seconds and half a gigabyte of disk.
    """
    from fastio_bench.doctor.command import doctor as run

    run(command, **given)
