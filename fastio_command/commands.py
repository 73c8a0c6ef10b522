"""The ``fastio`` command group: its subcommands, and what becomes of errors and Ctrl-C."""

from __future__ import annotations

import errno
import io
import pickle
import sys
import warnings
from typing import Any

import click

from fastio_command.output import end_without_output, is_of_output, open_stdout
from fastio_command.subcommands import (
    GIVEN,
    convert,
    cp,
    dictionaries,
    diff,
    doctor,
    explain,
    inspect,
    ls,
    rm,
    seal,
    tools,
    verify,
    volume,
)


class _Commands(click.Group):
    def main(self, *arguments: Any, **named: Any) -> Any:
        """Run the command line. Warnings are one line each on stderr; so is output that cannot be written."""
        open_stdout()
        with warnings.catch_warnings():
            warnings.showwarning = _tell_warning
            try:
                return super().main(*arguments, **named)
            except OSError as error:
                if not is_of_output(error):
                    raise
                end_without_output(error)

    def invoke(self, context: click.Context) -> Any:
        """Run a subcommand. An error is one line on stderr and exit status 2; Ctrl-C gives status 130.

        With ``--json`` an error of a subcommand is a document on stdout as well.
        """
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a terminal without Unicode shows escapes
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            context.exit(130)  # 128 + SIGINT, as shells have it
        except (click.exceptions.Exit, click.Abort):
            raise
        except click.ClickException as error:
            if GIVEN in context.meta:  # the subcommand itself raised it: what it needs is imported
                from fastio.cli.messages import echo_error

                echo_error(error, context.meta[GIVEN])
            raise
        except Exception as error:
            from fastio.cli.messages import TROUBLE, complain, echo_error
            from fastio.errors import FastIOError

            if not isinstance(error, FastIOError | OSError | MemoryError | pickle.UnpicklingError):
                raise
            if isinstance(error, OSError) and (error.errno == errno.EPIPE or is_of_output(error)):
                raise  # click ends silently if the reader of stdout is gone
            complain(error)
            echo_error(error, context.meta.get(GIVEN, {}))
            context.exit(TROUBLE)


def _tell_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"fastio: warning: {' '.join(str(message).split())}", err=True)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fastio")
def cli() -> None:
    """Look into files of tensors, check, compare and convert them, and see which tools fastio uses and why."""


for command in (inspect, verify, seal, convert, diff, volume, ls, cp, rm, explain, tools, dictionaries, doctor):
    cli.add_command(command)
