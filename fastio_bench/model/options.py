"""The options of ``fastio-bench model`` and its help, without what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun

MODELS = (
    "alexnet",
    "vgg19",
    "resnet152",
    "wide-resnet50-2",
    "vit-b-32",
    "swin-b",
    "vit-h-14",
    "mobilenet-v3-small",
    "mobilenet-v3-large",
    "toy",
    "bert-base-chinese",
    "bert-base-uncased",
)
QUICK = ("alexnet", "mobilenet-v3-small")
ROUNDS = 3


@click.command()
@click.option(
    "--model",
    "names",
    multiple=True,
    metavar="NAME",
    type=click.Choice(MODELS),
    help=f"Only this; may be repeated: {', '.join(MODELS)}.  "
    f"[default: the paper's ten; with --quick {' and '.join(QUICK)}]",
)
@click.option("--rounds", type=click.IntRange(1), help=f"Rounds; {ROUNDS}, or what fits into a quarter of an hour.")
@common
def model(command: CommandRun, **given: Any) -> None:
    """Seconds to save (durably and not) and to load (cold and warm) real models' state dicts, by tool."""
    from fastio_bench.model.command import model as run

    run(command, **given)
