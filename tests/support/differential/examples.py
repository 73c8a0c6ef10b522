"""Runs examples in one process: ``python -m differential.examples --seed S --first N --count N --kind K``."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "accelerator"))

from differential import folders, formats, models, modules, objects, schedules, tensors, ways
from differential.comparing import DifferentError
from differential.describing import describe
from differential.kinds import KINDS
from differential.shrinking import shrink
from fastio.devices import simulated

SECONDS_PER_EXAMPLE = 120
_LARGE = 50  # one example in so many is large
_DELAY, _LARGE_DELAY = 15, 150  # the most milliseconds of a schedule's delays in one call
# Upper bound of the draw, function that makes the object, function that saves, loads and compares it.
_CHECKS: list[tuple[float, Any, Any]] = [
    (0.65, objects.small, ways.check),
    (0.71, formats.state, formats.check_safetensors),
    (0.75, lambda rng: tensors.plain(rng, medium=True), formats.check_npy),
    (0.8, lambda rng: objects.small(rng, stateful=False), folders.check_checkpoint),
    (0.83, folders.training, folders.check_into),
    (0.85, folders.sharded, folders.check_dcp),
    (1.0, modules.state, models.check_model),
]

_open = contextlib.ExitStack()  # until the process ends


class Example:
    """One object and its ways, which depend only on a seed and a number."""

    def __init__(self, seed: int, number: int) -> None:
        self._name = f"{seed}:{number}"
        self._number = number
        rng = random.Random(self._name)
        self.large = rng.randrange(_LARGE) == 0
        draw = rng.random()
        self._kind = next(kind for kind in _CHECKS if draw < kind[0] or (self.large and kind is _CHECKS[0]))
        self.ways: list[Any] = []

    def make(self) -> Any:
        """Make the object."""
        rng = random.Random(f"{self._name}:object")
        torch.manual_seed(self._number)
        return objects.large(rng) if self.large else self._kind[1](rng)

    def run(self, obj: Any, folder: Path) -> str | None:
        """Run the example; returns how fastio's results differ from torch's, or None."""
        self.ways.clear()
        rng = random.Random(f"{self._name}:ways")
        folder.mkdir(exist_ok=True)
        try:
            self._kind[2](rng, obj, folder, _LARGE_DELAY if self.large else _DELAY, self.ways.append)
        except DifferentError as error:
            return str(error)
        except Exception as error:
            return f"fastio or the test itself failed: {error!r:.1000}"
        finally:
            if self.large or self._number % 100 == 0:
                shutil.rmtree(folder)
        return None


def prepare(kind: str) -> None:
    """Import the modules that some examples need, and exclude all existing objects from garbage collection.

    Half of the kinds of processes have the simulated accelerator, if there is a compiler for it.
    """
    sys.modules["nvidia.dali"] = None  # type: ignore[assignment]  # fastio.tools() would import it, for seconds
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("torch.testing._internal.two_tensor", "torch.nested._internal.nested_tensor", "fastio.distributed"):
        importlib.import_module(name)
    if kind in ("any", *KINDS[:2]) and simulated.why_not_buildable() is None:
        simulated.use()
        _open.enter_context(importlib.import_module("kvikio_stand_in").installed())
    ways.tools("load")
    gc.collect()
    gc.freeze()


def run_one(seed: int, number: int, root: Path) -> str | None:
    """Run one example; returns the difference or None."""
    example = Example(seed, number)
    return example.run(example.make(), root / "example")


def show(seed: int, number: int, root: Path, differs: bool) -> None:
    """Print an example's object and ways; if it differs, print the smallest object found that still differs."""
    example = Example(seed, number)
    folder = root / "example"
    obj = example.make()
    if differs:
        obj = shrink(example.make, lambda fewer: example.run(fewer, folder) is not None)
    print("the object:", describe(obj), f"it: {example.run(obj, folder) or 'no difference'}", sep="\n")
    print("the ways:", *example.ways, sep="\n  ")


def main() -> int:
    """Run a range of examples of one kind; the status is 1 at the first difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--kind", choices=(*KINDS, "any"), default="any", help="only examples of this kind")
    parser.add_argument("--times", type=int, default=1, help="runs of each example")
    parser.add_argument("--all", action="store_true", help="continue after a difference")
    parser.add_argument("--verbose", action="store_true", help="print the object and the ways")
    given = parser.parse_args()
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare(given.kind)
    begun, done, differences = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="differential-", dir=os.environ.get("DIFFERENTIAL_FOLDER")) as root:
        os.environ["FASTIO_DICTIONARY_DIR"] = os.path.join(root, "dictionaries")
        for number in range(given.first, given.first + given.count):
            if given.kind not in ("any", KINDS[number % len(KINDS)]):
                continue
            print("at number", number, flush=True)
            found = None
            for _ in range(given.times):
                faulthandler.dump_traceback_later(SECONDS_PER_EXAMPLE, exit=True)
                found = run_one(given.seed, number, Path(root))
                done += 1
                if found is not None:
                    differences += 1
                    print(f"seed {given.seed} number {number}: {found}", flush=True)
                    print(f"again: make differential SEED={given.seed} ONLY={number}", flush=True)
                    break
            faulthandler.cancel_dump_traceback_later()
            if given.verbose:
                show(given.seed, number, Path(root), found is not None)
            if differences and not given.all:
                break
    seconds, processor, strikes = time.monotonic() - begun, time.process_time(), schedules.strikes()
    print(f"done {done} with {strikes} delays and cuts in {seconds:.1f} seconds, {processor:.1f} of processor time")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
