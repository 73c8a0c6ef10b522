"""The subcommands of ``fastio``: their names, arguments, options and help. ``fastio.cli`` has what each of them does.

This module imports nothing of fastio before a subcommand runs: that imports torch, which takes seconds.
"""

from __future__ import annotations

import math
import os
from importlib import import_module
from typing import Any

import click

from fastio_command.imports import ended_by_interrupts

GIVEN = "fastio.given"  # the key of the subcommand's arguments in click's context


class _Tolerance(click.FloatRange):
    """A number from 0 on. NaN is none: no difference would be larger."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{found} is not in the range x>=0.", param, ctx)
        return found


_TOLERANCE = _Tolerance(min=0)


def _run(module: str, function: str, given: dict[str, Any]) -> None:
    click.get_current_context().meta[GIVEN] = given
    with ended_by_interrupts():
        called = getattr(import_module(f"fastio.cli.{module}"), function)
    called(**given)


@click.command(short_help="Tensors: shapes, dtypes, offsets, sharing; metadata.")
@click.argument("path")
@click.option("--tree", is_flag=True, help="Group the tensors by the parts of their names.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every tensor, value and note.")
def inspect(**given: Any) -> None:
    """List what PATH holds: a .pt, .safetensors or .npy file, or a folder.

    A folder has a model.safetensors.index.json, or is one of torch.distributed.checkpoint or of fastio.Checkpointer. Of
    a volume, it lists the objects, as fastio ls. No tensor bytes are read, and nothing in the file is run.
    """
    _run("inspect_command", "inspect", given)


@click.command(short_help="Compare files with their checksums.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of the files' outcomes.")
def verify(**given: Any) -> None:
    """Compare every byte of each PATH with its CRC-32, and its SHA-256 if there is one.

    Of a folder, each shard of a model, each step of fastio.Checkpointer or each data file of
    torch.distributed.checkpoint is compared, and has a line of its own; of a volume, each object. A .safetensors has
    checksums if fastio saved it, or after fastio seal. Without them, as in .npy, only the structure is checked, and
    that is said. Exit status: 0 if no damage was found, 1 for a damaged file, 2 for one that could not be read; that of
    the worst.
    """
    _run("verify_command", "verify", given)


@click.command(short_help="Write checksums of safetensors files beside them.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--hashes", is_flag=True, help="Store a SHA-256 of each tensor as well.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of the files' outcomes.")
def seal(**given: Any) -> None:
    """Write the CRC-32 of each tensor of each PATH into PATH.fastio-checksums.json; of a folder, for each shard.

    The file itself stays as it is. Loads by fastio, and fastio verify, compare the tensors with them from then on.
    Checksums that a file has already are compared first. Exit status: 0; 1 if a file is damaged, which is not sealed
    then; 2 for one that could not be read, or whose folder could not be written to.
    """
    _run("seal_command", "seal", given)


@click.command(short_help="Convert files of tensors into another format.")
@click.argument("source")
@click.argument("destination")
@click.option("--key", metavar="NAME", help="Convert this tensor, or dict of tensors, alone; or the name to give.")
@click.option("--max-shard-size", metavar="SIZE", help="Write a folder of safetensors files of so many bytes: 5GB.")
@click.option("--force", is_flag=True, help="Replace what is at the destination.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def convert(**given: Any) -> None:
    """Convert SOURCE to DESTINATION: .pt, .safetensors, .npy, a folder of shards; a folder of DCP as SOURCE.

    Of a folder of fastio.Checkpointer, the newest step is converted; --key model takes its model alone.

    The content of SOURCE and the name of DESTINATION say which: .safetensors, .pt, .pth, .bin, .npy, or a folder, which
    ends in / or has --max-shard-size. Checksums are compared on the way, and new ones written. The new files appear
    when they are complete. Exit status: 0, or 2 if SOURCE is damaged or cannot be converted; nothing is left then.
    Where only the command's output cannot be printed it is 2, too, and the new files are there.
    """
    _run("convert_command", "convert", given)


@click.command(short_help="Which tensors of two files differ, and by how much.")
@click.argument("first")
@click.argument("second")
@click.option("--atol", type=_TOLERANCE, default=0.0, help="Take |a - b| up to ATOL + RTOL * |b| for equal.")
@click.option("--rtol", type=_TOLERANCE, default=0.0, help="As for torch.allclose; both are 0 by default.")
@click.option("--strip-prefix", default="", metavar="PREFIX", help="Leave out PREFIX where a name begins with it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: whether they are equal, and each that differs.")
def diff(**given: Any) -> None:
    """Compare the tensors of FIRST and SECOND by name: files of any format, or folders of shards.

    Two NaN are equal. The relative difference of a and b is |a - b| / max(|a|, |b|). Values that are no tensors are not
    compared. One pair of tensors is in memory at a time. Exit status: 0 if all tensors are equal, 1 if some differ, 2
    if a file, or some of its tensors, could not be read.
    """
    _run("diff_command", "diff", given)


@click.command(short_help="Which tool a load or save would use, and why.")
@click.argument("target", metavar="PATH_OR_SIZE")
@click.option("--op", type=click.Choice(["load", "save"]), default="load", show_default=True, help="The operation.")
@click.option("--folder", help="The folder of a file of that size; by default the current one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(**given: Any) -> None:
    """Which tool would move a file, or a .pt of a size such as 1GiB, why, how sure that is, and the others' times.

    A name that is a file's is a path, else a size. Of a folder of fastio.Checkpointer, the newest step is meant.
    """
    _run("explain_command", "explain", given)


@click.command(short_help="The tools of this machine, and why some are missing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tools(**given: Any) -> None:
    """Every tool, built in or plugged in: what it does, or why it is unavailable and what to do about it."""
    _run("explain_command", "tools", given)


@click.group(short_help="What was learned about the tools: show it, fill it, clear it.")
def dictionaries() -> None:
    """The dictionaries: how long each tool took for each size, by filesystem and machine."""


@dictionaries.command(short_help="Where they are, and what is in them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(**given: Any) -> None:
    """Where the dictionaries are kept, which filesystem and machine each is of, and which tools are the fastest."""
    _run("dictionaries_command", "show", given)


@dictionaries.command(name="clear", short_help="Remove them: all is learned anew.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what was removed.")
def clear_all(**given: Any) -> None:
    """Remove all dictionaries of this user, after a question. Saves and loads work as before, and learn anew."""
    _run("dictionaries_command", "clear_all", given)


@dictionaries.command(name="tune", short_help="Fill them, by saving and loading files.")
@click.argument("where", metavar="[FOLDER]", default=os.curdir)
@click.option("--largest", default="256MiB", show_default=True, help="The largest file; twice that must be free.")
@click.option("--rounds", type=click.IntRange(1), default=8, show_default=True, help="Rounds at each size.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tune_tools(**given: Any) -> None:
    """Save and load files in FOLDER (the current one), so that its dictionaries know the tools' times before use.

    fastio learns by itself as it is used; this only brings it forward.
    """
    _run("dictionaries_command", "tune_tools", given)


@click.command(short_help="Versions, filesystem, direct I/O, io_uring, tools.")
@click.option("--dir", "folder", default=".", show_default=True, help="The folder whose filesystem is checked.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(**given: Any) -> None:
    """What is installed, what this machine and the filesystem of a folder allow, and why a tool is unavailable.

    A file of 4 KiB is written into the folder and removed. `fastio-bench doctor` also measures, and lists NVMe
    controllers.
    """
    _run("doctor_command", "doctor", given)


@click.group(short_help="Volumes: files or namespaces that hold objects.")
def volume() -> None:
    """A volume is a file, a block device or an NVMe namespace that holds named objects, without a filesystem."""


@volume.command(short_help="Make an empty volume.")
@click.argument("where", metavar="PATH")
@click.argument("size", required=False)
@click.option("--force", metavar="SERIAL", help="Take the drive with this serial number, whatever it holds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(**given: Any) -> None:
    """Make an empty volume: a new file PATH of SIZE bytes, such as 100GiB, or all of a device.

    A device is /dev/nvme0n1, nvme:/dev/ng0n1, vfio:0000:03:00.0 or spdk:...; one that is in use, or holds anything, is
    refused.
    """
    _run("volume_command", "create", given)


@click.command(short_help="The objects of a volume.")
@click.argument("where", metavar="VOLUME")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(**given: Any) -> None:
    """List the objects of VOLUME: PATH, file:PATH, nvme:..., vfio:... or spdk:...

    Of VOLUME/TEXT, those whose names begin with TEXT.
    """
    _run("volume_command", "ls", given)


@click.command(short_help="Remove objects of volumes.")
@click.argument("paths", nargs=-1, required=True, metavar="VOLUME/NAME...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of the outcomes.")
def rm(**given: Any) -> None:
    """Remove objects, each named as in /disk/volume/step-100.pt. Exit status: 0, or 2 if one was not there."""
    _run("volume_command", "rm", given)


@click.command(short_help="Copy between files and volumes.")
@click.argument("source")
@click.argument("destination")
@click.option("--force", is_flag=True, help="Replace what is at the destination.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cp(**given: Any) -> None:
    """Copy SOURCE, a file or an object of a volume, to DESTINATION, a file, a folder, an object or a volume.

    Into a folder or a volume, the name is that of SOURCE. A SOURCE that is a volume is copied as the file that it is.
    Bytes are copied as they are; `fastio verify` compares them with their checksums. What is new appears when it is
    complete.
    """
    _run("volume_command", "cp", given)
