"""The ``fastio-bench`` command group. :mod:`fastio_bench.harness.command_run` has what its subcommands share."""

from __future__ import annotations

from typing import Any

import click

from fastio_bench.checkpoint.command import checkpoint
from fastio_bench.contend.command import contend
from fastio_bench.doctor.command import doctor
from fastio_bench.harness.interrupts import STATUS
from fastio_bench.hybrid.command import hybrid
from fastio_bench.io.command import io
from fastio_bench.model.command import model
from fastio_bench.offload.command import offload
from fastio_bench.peers.command import peers
from fastio_bench.report.command import report
from fastio_bench.store.command import store
from fastio_bench.tools.command import tools
from fastio_bench.tools.tune_command import tune
from fastio_bench.weights.command import weights


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        """Run a subcommand. Ctrl-C outside a measurement, as during plotting, gives the same exit status as inside."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            context.exit(STATUS)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fastio")
def cli() -> None:
    """What fastio and its peers reach on this machine.

    Figures are medians of interleaved rounds, MB are 10^6 bytes. Everything is measured in a temporary folder below
    --dir, which is removed also when Ctrl-C ends the run; what was measured until then is shown.
    """


for command in (checkpoint, contend, doctor, hybrid, io, model, offload, peers, report, store, tools, tune, weights):
    cli.add_command(command)
