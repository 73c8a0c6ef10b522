"""The command: runs many examples in four kinds of processes, from where the last run stopped, or repeats one example.

It runs a range of numbers in pieces, each piece in four processes. The first is unchanged. In the second, schedules
delay and split reads. The third also has schedules, and may use only one processor. The fourth has MALLOC_PERTURB_ set,
so that allocated and freed memory is never zeros. Example n runs in process n modulo 4. The file ``state-SEED.json`` in
the folder ``--state`` has the next number.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

_SUPPORT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(_SUPPORT))

from differential import schedules  # noqa: E402  # a script run by its path must find the package first
from differential.kinds import KINDS  # noqa: E402

_PERTURBED = "165"  # memory from malloc is filled with 0x5a, freed memory with 0xa5
_DONE, _AT = "done ", "at number "
_OFFLOAD_SHARE = 20  # an example of Offload takes as long as so many examples here


class Piece(NamedTuple):
    """The result of one process."""

    status: int
    output: list[str]
    examples: int
    strikes: int  # how often a schedule delayed or cut a call


def environment(kind: str, folder: Path) -> dict[str, str]:
    """The environment variables for a kind of process; ``folder`` holds the schedules' library."""
    made = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_SUPPORT), os.environ.get("PYTHONPATH", "")])}
    if kind == "perturbed":
        made["MALLOC_PERTURB_"] = _PERTURBED
    elif kind in ("schedule", "one-cpu"):
        made["LD_PRELOAD"] = str(folder / schedules.LIBRARY)
    return made


def _pin(kind: str) -> None:
    """Bind this process to the processors of its kind: one, two, or all."""
    count = {"one-cpu": 1, "perturbed": 2}.get(kind)
    if count is not None:
        there = sorted(os.sched_getaffinity(0))
        begin = os.getpid() % len(there)
        os.sched_setaffinity(0, set((there + there)[begin : begin + count]))


def run(kind: str, folder: Path, arguments: list[str]) -> Piece:
    """Run examples of a kind in a process of their own."""
    process = subprocess.run(
        [sys.executable, "-m", "differential.examples", "--kind", kind, *arguments],
        env=environment(kind, folder),
        cwd=_SUPPORT,  # not the root of the repository, whose package has no native part
        preexec_fn=lambda: _pin(kind),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = process.stdout.splitlines()
    ended = next((line.split() for line in lines if line.startswith(_DONE)), ["", "0", "", "0"])
    rest = [line for line in lines if not line.startswith((_DONE, _AT))]
    if not any(line.startswith(_DONE) for line in lines):  # it died: report the last example that it began
        rest += [line for line in lines if line.startswith(_AT)][-1:]
    return Piece(process.returncode, rest, int(ended[1]), int(ended[3]))


def run_range(
    seed: int, first: int, count: int, folder: Path, jobs: int, arguments: list[str]
) -> tuple[int, list[str]]:
    """Run the examples of a range, each kind in its own process; returns how many ran, and the problems."""
    given = ["--seed", str(seed), "--first", str(first), "--count", str(count), *arguments]
    with ThreadPoolExecutor(jobs) as pool:
        pieces = list(pool.map(lambda kind: run(kind, folder, given), KINDS))
    problems = []
    for kind, piece in zip(KINDS, pieces, strict=True):
        if piece.status != 0:
            problems += [*piece.output, f"the process of kind {kind!r} ended with status {piece.status}"]
    return sum(piece.examples for piece in pieces), problems


def _run_one(given: argparse.Namespace) -> int:
    kind = KINDS[given.only % len(KINDS)]
    arguments = ["--seed", str(given.seed), "--first", str(given.only), "--count", "1", "--times", str(given.times)]
    piece = run(kind, given.state, [*arguments, "--verbose"])
    print(*piece.output, f"kind {kind!r}, status {piece.status}", sep="\n")
    return int(piece.status != 0)


def _run_all(given: argparse.Namespace) -> int:
    state = given.state / f"state-{given.seed}.json"
    first = json.loads(state.read_text())["next"] if state.exists() else 0
    end, done, begun, status = first + given.examples, 0, time.monotonic(), 0
    while first < end:
        count = min(given.piece, end - first)
        ran, problems = run_range(given.seed, first, count, given.state, given.jobs, ["--all"] if given.all else [])
        done += ran
        seconds = time.monotonic() - begun
        print(
            f"seed {given.seed}, to number {first + count}: {done} examples, {done / seconds:.0f} per second",
            flush=True,
        )
        if problems:
            print(*problems, sep="\n")
            if not given.all:
                return 1
        first += count
        status |= bool(problems)
        state.write_text(json.dumps({"next": first}))
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=20000, help="how many more to run")
    parser.add_argument("--only", type=int, help="run and print only this example")
    parser.add_argument("--times", type=int, default=20, help="with --only: how often")
    parser.add_argument("--piece", type=int, default=4000, help="examples between two writes of the state")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at once")
    parser.add_argument("--all", action="store_true", help="continue after a difference")
    parser.add_argument("--state", type=Path, default=_SUPPORT.parents[1] / "build" / "differential", help="a folder")
    given = parser.parse_args()
    given.state = given.state.resolve()
    schedules.build(given.state)
    if given.only is not None:
        return _run_one(given)
    status = _run_all(given)
    offload = Path(__file__).with_name("offload.py")
    if status == 0 and offload.exists():
        count = max(1, given.examples // _OFFLOAD_SHARE)
        arguments = ["--examples", str(count), "--seed", str(given.seed)]
        status = subprocess.run([sys.executable, str(offload), *arguments], cwd=_SUPPORT, check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
