"""The subcommands of ``fastio-bench``, one file each; what they share is :mod:`fastio.bench.conduct`."""

from __future__ import annotations

from typing import Any

import click

from fastio.bench.checkpoint_command import checkpoint
from fastio.bench.contend_command import contend
from fastio.bench.doctor_command import doctor
from fastio.bench.hybrid_command import hybrid
from fastio.bench.interrupts import STATUS
from fastio.bench.io_command import io
from fastio.bench.model_command import model
from fastio.bench.offload_command import offload
from fastio.bench.peers_command import peers
from fastio.bench.report_command import report
from fastio.bench.store_command import store
from fastio.bench.tools_command import tools
from fastio.bench.tune_command import tune


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        """Ctrl-C before and after something is measured, as while plots are drawn, has the same exit status."""
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


for command in (checkpoint, contend, doctor, hybrid, io, model, offload, peers, report, store, tools, tune):
    cli.add_command(command)
