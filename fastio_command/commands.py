"""The ``fastio`` command group: its subcommands, and what becomes of errors and Ctrl-C."""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

import click

from fastio_command.subcommands import convert, dictionaries, diff, doctor, explain, inspect, seal, tools, verify


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        """Run a subcommand. An error is one line on stderr and exit status 2; Ctrl-C gives status 130."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal without Unicode shows escapes
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            context.exit(130)  # 128 + SIGINT, as shells have it
        except (click.exceptions.Exit, click.Abort, click.ClickException):
            raise
        except Exception as error:
            from fastio.cli.messages import TROUBLE, complain
            from fastio.errors import FastIOError

            if not isinstance(error, FastIOError | OSError | MemoryError):
                raise
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click ends silently: the reader of stdout is gone
            complain(error)
            context.exit(TROUBLE)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fastio")
def cli() -> None:
    """Look into files of tensors, check, compare and convert them, and see which tools fastio uses and why."""


for command in (inspect, verify, seal, convert, diff, explain, tools, dictionaries, doctor):
    cli.add_command(command)
