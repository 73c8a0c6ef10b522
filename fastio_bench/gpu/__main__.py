"""``python3 -m fastio_bench.gpu``: runs a command of the plan, or single items of it. It needs no package itself."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from fastio_bench.gpu.plan import Command, commands
from fastio_bench.gpu.runner import Item, run


def main(arguments: list[str] | None = None) -> int:
    """Run what is named, in that order. Returns 0 if all of it ran and succeeded, else 1."""
    given = _parser().parse_args(arguments)
    root = given.root.resolve()
    plan = commands(root)
    if given.list or not given.names:
        _show(plan)
        return 0
    items, limit = _chosen(plan, given.names)
    out, parent = given.out.resolve(), given.dir.resolve()
    for folder in (out, parent):
        folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have disabled it for this and for the items
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the item too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an item that is ended for its time leaves no core
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as scratch:
        site = Path(scratch, "site")
        environment = {
            "PYTHONFAULTHANDLER": "1",
            "PYTHONUNBUFFERED": "1",
            "FASTIO_DICTIONARY_DIR": str(Path(scratch, "dictionaries")),
        }
        if given.wheels is not None:
            _install(given.wheels, site)
            environment["PYTHONPATH"] = str(site)
        return 0 if run(items, given.seconds or limit, out, Path(scratch, "items"), environment) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m fastio_bench.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="1, 2, 3, 4, more, or single items")
    parser.add_argument("--list", action="store_true", help="list the items, run nothing")
    parser.add_argument("--seconds", type=float, help="total time [default: that of the first command named, or 540]")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT", "gpu-results"), help="[default: $OUT]")
    parser.add_argument("--wheels", type=Path, help="install the wheels of this folder, without a network")
    parser.add_argument("--dir", type=Path, default="build/gpu", help="where items run; on the disk to measure")
    parser.add_argument("--root", type=Path, default=".", help="the source tree [default: the current folder]")
    return parser


def _show(plan: dict[str, Command]) -> None:
    for name, command in plan.items():
        print(f"{name}: at most {command.seconds:.0f} s")
        for item in command.items:
            print(f"    {item.name}, {item.seconds:.0f} s")


def _chosen(plan: dict[str, Command], names: list[str]) -> tuple[list[Item], float]:
    """The items that are named, and the total time."""
    by_name = {item.name: item for command in plan.values() for item in command.items}
    unknown = [name for name in names if name not in plan and name not in by_name]
    if unknown:
        sys.exit(f"no command or item is called {', '.join(unknown)}: --list shows them")
    items = [item for name in names for item in (plan[name].items if name in plan else (by_name[name],))]
    return items, next((plan[name].seconds for name in names if name in plan), 540)


def _install(wheels: Path, site: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*install, "--target", str(site), *map(str, sorted(wheels.glob("*.whl")))], check=True)


if __name__ == "__main__":
    sys.exit(main())
