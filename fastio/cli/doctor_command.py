"""``fastio doctor``: versions, the filesystem, direct I/O, io_uring, and the tools with the reasons of missing ones."""

from __future__ import annotations

import errno
import math
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import torch

from fastio import config, processors
from fastio._native import __file__, crc32_kernel
from fastio.cli.files import temporary_folder
from fastio.cli.messages import echo_json, escaped
from fastio.cli.tables import show_table
from fastio.dicts import fingerprint
from fastio.dicts.defaults import folder as dictionary_folder
from fastio.inspect.machine_checks import direct_io, gds, io_uring, tool_rows

_PACKAGES = (
    *("fastio", "torch", "numpy", "safetensors", "nvidia-dali-cuda120", "kvikio-cu12", "kvikio-cu13"),
    *("cupy-cuda12x", "cupy-cuda13x"),
)


def doctor(folder: str, as_json: bool) -> None:
    """Run ``fastio doctor``."""
    answers, tools = _answers(folder), tool_rows()
    if as_json:
        rows = [{"name": name, "available": available, "detail": detail} for name, available, detail in tools]
        echo_json({"folder": os.path.abspath(folder), "machine": answers, "tools": rows})
        return
    for name, answer in answers.items():
        click.echo(f"{name}: {escaped(answer)}")
    click.echo()
    rows_shown = [(name, "yes" if available else "no", detail) for name, available, detail in tools]
    show_table(("tool", "available", "what it does, or why it is unavailable"), rows_shown)


def _answers(folder: str) -> dict[str, str]:
    """The checks by name. OSError if a file cannot be written into the folder, unless its filesystem is full."""
    try:
        with temporary_folder(folder, ".fastio-doctor-") as empty:
            direct = direct_io(Path(empty))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        direct = f"unknown: {folder} is full ({os.strerror(error.errno)}): free some space, or name another by --dir"
    marks = fingerprint.of(folder)
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    where = dictionary_folder()
    changed = [f"{one.environment}={os.environ[one.environment]}" for one in config.SETTINGS.values() if _is_set(one)]
    return {
        "versions": ", ".join(f"{name} {number}" for name, number in _versions().items()),
        "Python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processors": _processors(),
        "I/O threads": _io_threads(),
        "GPU": ", ".join(gpus) or "none that torch sees",
        "native module": f"{__file__} (CRC-32: {crc32_kernel()})",
        "filesystem": f"{marks.filesystem} on {marks.device}, {shutil.disk_usage(folder).free / 1e9:.1f} GB free",
        "direct I/O": direct,
        "io_uring": io_uring(),
        "GPUDirect Storage": gds(),
        "dictionaries": where or "not kept: there is no home directory; set FASTIO_DICTIONARY_DIR to a folder",
        "settings": ", ".join(changed) or "all by default",
    }


def _processors() -> str:
    limit = processors.cgroup_limit()
    affinity = f"{len(os.sched_getaffinity(0))} that this process may run on"
    return affinity if limit == math.inf else f"{affinity}; its cgroups allow it the time of {limit:g}"


def _io_threads() -> str:
    setting = config.SETTINGS["io_threads"]
    source = f"{setting.environment}" if _is_set(setting) else "one for each processor, 16 at most"
    return f"{config.get(setting.name)} ({source})"


def _is_set(setting: config.Setting) -> bool:
    return setting.environment in os.environ


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            # torch's own text names its build as well: 2.11.0+cu130.
            found[package] = torch.__version__ if package == "torch" else version(package)
        except PackageNotFoundError:
            continue
    return found
