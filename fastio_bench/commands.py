"""The ``fastio-bench`` command group. :mod:`fastio_bench.harness.command_run` has what its subcommands share.

A subcommand is imported when it is asked for: its module imports torch, which takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from fastio_bench.harness.interrupts import STATUS

# The subcommands, the folder of each one's `command.py`, and the line of `--help`.
SUBCOMMANDS = {
    "checkpoint": ("checkpoint.command", "Saves and restores of a model and its optimizer."),
    "contend": ("contend.command", "Files and training while others use memory bandwidth."),
    "doctor": ("doctor.command", "What is here, the way bytes take, the disk's limit."),
    "hybrid": ("hybrid.command", "Training with parameters and gradients in host memory."),
    "io": ("io.command", "Bandwidth and processor time by tool and size."),
    "model": ("model.command", "Seconds to save and to load real models."),
    "offload": ("offload.command", "Training with activations offloaded."),
    "papers": ("papers.command", "The papers' figures, ours, and what answers each."),
    "peers": ("peers.command", "The same work by other libraries and by fastio."),
    "report": ("report.command", "One HTML page of the results in a folder."),
    "store": ("store.command", "The block store of activations beside fio."),
    "tools": ("tools.command", "How the best tool spreads, and how near auto comes."),
    "tune": ("tools.tune_command", "Fill and keep this machine's dictionaries."),
    "weights": ("weights.command", "Weights of language models into modules, and back."),
}


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        """The names of all subcommands."""
        return list(SUBCOMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import a subcommand; None if there is none of that name."""
        if name not in SUBCOMMANDS:
            return None
        command = getattr(import_module(f"fastio_bench.{SUBCOMMANDS[name][0]}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of subcommands in ``--help``, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in SUBCOMMANDS.items()])

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
