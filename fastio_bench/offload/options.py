"""The options of ``fastio-bench offload`` and its help, without what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import as_bytes, as_some_bytes, common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun


@click.command()
@click.option(
    "--model",
    default="transformer",
    show_default=True,
    type=click.Choice(("mlp", "cnn", "transformer", "lstm", "vit", "conv-stack")),
    help="What is trained.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=("all",),
    show_default=True,
    type=click.Choice(("all", "flashneuron", "optimal", "vdnn-all", "vdnn-conv", "vdnn-dyn", "fastensor")),
    help="Which tensors leave; may be repeated.",
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    type=click.Choice(("none", "csr", "lossless", "exponents", "fp16", "bf16", "csr+fp16")),
    help="May be repeated.  [default: lossless; fp16 with --accuracy]",
)
@click.option(
    "--tool",
    "tools",
    multiple=True,
    metavar="NAME",
    help="Also Fastensor's way by this tool alone, or by WDic (w) or RDic (r); may be repeated: uring, posix, w, ...",
)
@click.option(
    "--device",
    type=click.Choice(("cpu", "cuda", "simulated")),
    help="What trains. The simulated accelerator is built first, once, in about a minute.  [default: cpu]",
)
@click.option("--budget", metavar="SIZE", callback=as_bytes, help="Memory that saved tensors may take, as 512MiB.")
@click.option("--host-budget", metavar="SIZE", callback=as_bytes, help="Host memory to use before the disk.")
@click.option(
    "--batch",
    "batches",
    multiple=True,
    type=click.IntRange(1),
    help="Examples in a batch; may be repeated.  [default: the model's]",
)
@click.option("--depth", type=click.IntRange(1), help="Layers or blocks.  [default: the model's]")
@click.option("--width", type=click.IntRange(1), help="Features or channels.  [default: the model's]")
@click.option("--rounds", type=click.IntRange(1), help="Rounds; 3, with --quick 1.")
@click.option("--steps", type=click.IntRange(1), help="Steps that count, a round; 5, with --quick 2.")
@click.option(
    "--memory-limit", metavar="SIZE", callback=as_some_bytes, help="Instead: the largest depth that trains in it."
)
@click.option("--accuracy", is_flag=True, help="Instead: accuracy on scikit-learn's digits, plain and with the codec.")
@click.option("--host-time", is_flag=True, help="Instead: the host's time for each saved tensor.")
@click.option("--joint", is_flag=True, help="Instead: keep, move or recompute, beside moving or recomputing alone.")
@click.option(
    "--largest",
    is_flag=True,
    help="Instead: the papers' networks' largest batches and depths, with --device simulated.",
)
@click.option("--simulate", is_flag=True, help="Instead: the papers' machines, simulated.")
@common
def offload(command: CommandRun, **given: Any) -> None:
    """Step time, peak memory and gradients with activations offloaded, beside plain training and others' ways.

    Every --batch with every --policy and --codec, a row each.
    """
    from fastio_bench.offload.command import offload as run

    run(command, **given)
