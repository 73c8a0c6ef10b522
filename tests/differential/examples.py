"""Runs examples in one process: ``python -m differential.examples --seed S --first N --count N --kind K``."""

from __future__ import annotations

import argparse
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

from differential import folders, formats, objects, tensors, ways
from differential.comparing import DifferentError
from differential.describing import describe
from differential.kinds import KINDS

SECONDS_PER_EXAMPLE = 120
_LARGE = 50  # one in so many is large


class Example:
    """One object and its ways: a pure function of a seed and a number."""

    def __init__(self, seed: int, number: int) -> None:
        self._rng = random.Random(f"{seed}:{number}")
        torch.manual_seed(number)
        self.ways: list[Any] = []
        self.obj: Any = None
        self.large = self._rng.randrange(_LARGE) == 0

    def run(self, folder: Path) -> None:
        """DifferentError where fastio does other than torch."""
        rng = self._rng
        milliseconds = 150 if self.large else 15
        draw = rng.random()
        if self.large or draw < 0.8:
            self.obj = objects.large(rng) if self.large else objects.small(rng)
            ways.check(rng, self.obj, folder, milliseconds, self.ways.append)
        elif draw < 0.86:
            self.obj = formats.state(rng)
            formats.check_safetensors(rng, self.obj, folder, milliseconds, self.ways.append)
        elif draw < 0.9:
            self.obj = tensors.plain(rng, medium=True)
            formats.check_npy(rng, self.obj, folder, milliseconds, self.ways.append)
        elif draw < 0.95:
            self.obj = objects.small(rng)
            folders.check_checkpoint(rng, self.obj, folder, milliseconds, self.ways.append)
        elif draw < 0.98:
            self.obj = folders.training(rng)
            folders.check_into(rng, self.obj, folder, milliseconds, self.ways.append)
        else:
            self.obj = folders.sharded(rng)
            folders.check_dcp(rng, self.obj, folder, milliseconds, self.ways.append)


def prepare() -> None:
    """Import what some examples need, and let the collector never look at all this again."""
    sys.modules["nvidia.dali"] = None  # type: ignore[assignment]  # fastio.tools() would import it, for seconds
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("torch.testing._internal.two_tensor", "torch.nested._internal.nested_tensor", "fastio.distributed"):
        importlib.import_module(name)
    ways.tools("load")
    gc.collect()
    gc.freeze()


def run_one(seed: int, number: int, root: Path, verbose: bool) -> str | None:
    """Run one example; gives the difference, if there is one."""
    example = Example(seed, number)
    folder = root / "example"
    folder.mkdir(exist_ok=True)
    found = None
    try:
        example.run(folder)
    except DifferentError as error:
        found = str(error)
    except Exception as error:
        if verbose:
            raise
        found = f"the test itself failed: {error!r}"
    if verbose:
        print("the object:", describe(example.obj), sep="\n")
        print("the ways:", *example.ways, sep="\n  ")
    if example.large or number % 100 == 0:
        shutil.rmtree(folder)
    return found


def main() -> int:
    """Run a range of examples of one kind; the status is 1 at the first difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--kind", choices=(*KINDS, "any"), default="any", help="only examples of this kind")
    parser.add_argument("--times", type=int, default=1, help="how often each example is run")
    parser.add_argument("--all", action="store_true", help="go on after a difference")
    parser.add_argument("--verbose", action="store_true", help="print the object and the ways")
    given = parser.parse_args()
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare()
    begun, done, differences = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="differential-", dir=os.environ.get("DIFFERENTIAL_FOLDER")) as root:
        os.environ["FASTIO_DICTIONARY_DIR"] = os.path.join(root, "dictionaries")
        for number in range(given.first, given.first + given.count):
            if given.kind not in ("any", KINDS[number % len(KINDS)]):
                continue
            for _ in range(given.times):
                faulthandler.dump_traceback_later(SECONDS_PER_EXAMPLE, exit=True)
                found = run_one(given.seed, number, Path(root), given.verbose)
                done += 1
                if found is not None:
                    differences += 1
                    print(f"seed {given.seed} number {number}: {found}", flush=True)
                    print(f"again: make differential SEED={given.seed} ONLY={number}", flush=True)
                    break
            if differences and not given.all:
                break
        faulthandler.cancel_dump_traceback_later()
    print(
        f"done {done} in {time.monotonic() - begun:.2f} seconds, {time.process_time():.2f} of the processor", flush=True
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
