"""The ``fastio-bench`` command group. A subcommand's options are in the ``options.py`` of its folder.

What it does is in ``command.py``, which is imported when it runs: that imports torch, which takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from fastio_bench.harness.interrupts import STATUS

# The subcommands, the module of each one's options, and the line of `--help`.
SUBCOMMANDS = {
    "checkpoint": ("checkpoint.options", "Saves and restores of a model and its optimizer."),
    "contend": ("contend.options", "Files and training while others use memory bandwidth."),
    "doctor": ("doctor.options", "What is here, the way bytes take, the disk's limit."),
    "hybrid": ("hybrid.options", "Training with parameters and gradients in host memory."),
    "io": ("io.options", "Bandwidth and processor time by tool and size."),
    "model": ("model.options", "Seconds to save and to load real models."),
    "offload": ("offload.options", "Training with activations offloaded."),
    "papers": ("papers.options", "The papers' figures, ours, and what answers each."),
    "peers": ("peers.options", "The same work by other libraries and by fastio."),
    "report": ("report.options", "One HTML page of the results in a folder."),
    "store": ("store.options", "The block store of activations beside fio."),
    "tools": ("tools.options", "How the best tool spreads, and how near auto comes."),
    "tune": ("tools.tune_options", "Fill and keep this machine's dictionaries."),
    "weights": ("weights.options", "Weights of language models into modules, and back."),
}


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        """The names of all subcommands."""
        return list(SUBCOMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import the options of a subcommand; None if there is none of that name."""
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
