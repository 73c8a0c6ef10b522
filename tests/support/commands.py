"""Runs the ``fastio`` command in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from fastio_command.commands import cli


def run(*arguments: object, status: int = 0, input: str | None = None) -> Result:
    """Run ``fastio`` with arguments, and require its exit status."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], input=input)
    assert result.exit_code == status, result.output
    return result
