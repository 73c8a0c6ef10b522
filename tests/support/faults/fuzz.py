"""Loads damaged files and judges the results.

It is a process of its own: ``python -m faults.fuzz FORMAT small|large COUNT FOLDER``.

Accepted results are: a FastIOError; an error that the format's own library raises too, of a type in
``FOREIGN_ERRORS``; the saved object; and, if the format has no checksums or a mutation corrected them, the object that
the library loads from the same bytes. Everything else is a problem: a crash, a hang, another error, another object, or
memory far beyond the file's size.
"""

from __future__ import annotations

import json
import mmap
import pickle
import resource
import signal
import struct
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import safetensors
import safetensors.torch
import torch

import fastio
from faults import mutations

# Errors of the libraries for damaged files, which fastio may pass on. torch's unpickler does not catch the errors of
# its own steps on a forged pickle: an empty stack, a missing key, a tuple of the wrong length, or (in the legacy
# format, which torch assumes for unknown bytes) a string length larger than memory.
FOREIGN_ERRORS: dict[str, tuple[type[Exception], ...]] = {
    "pt": (
        *(pickle.UnpicklingError, EOFError, RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError),
        *(struct.error, AssertionError, MemoryError),
    ),
    "safetensors": (safetensors.SafetensorError,),
    "npy": (ValueError, EOFError),
}
POLICIES = ("posix", "uring", "auto")
# Beyond the process's initial use: threads' stacks, a 64 MiB heap arena, and a large file several times.
ADDRESS_SPACE = {"small": 256 << 20, "large": 512 << 20}
SECONDS_PER_CASE = 120  # ends a hang, also on a busy machine
WARM_UP = 60  # cases


def originals(file_format: str, size: str, folder: Path) -> list[tuple[bytes, Any]]:
    """Valid files by fastio and by the format's own library, each with its object.

    Small files have a few KiB. Large ones have 17 MiB and more: several threads, or many requests at once, read them
    while another thread builds the object.
    """
    generator = torch.Generator().manual_seed(7)
    rows, columns, odd = (5, 7, 33) if size == "small" else (2203, 2003, 500_009)
    tensor = torch.randn(rows, columns, generator=generator)
    state = {
        "weight": tensor,
        "half": torch.randn(odd, generator=generator).to(torch.bfloat16),
        "mask": torch.randn(3, 3, generator=generator) > 0,
        "empty": torch.empty(0, 4),
        "step": torch.tensor(12),
    }
    path = folder / f"good.{file_format}"
    made: list[tuple[bytes, Any]] = []
    if file_format == "pt":
        nested = {**state, "view": tensor.t()[1:], "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}], "name": "it"}
        matrix = {"table": torch.randn(40, 64, generator=generator), "bias": torch.randn(9, generator=generator)}
        for value in (nested, matrix) if size == "small" else (nested,):
            fastio.save(value, path, policy="posix", durable=False)
            made.append((path.read_bytes(), value))
        torch.save(nested, path)
        made.append((path.read_bytes(), nested))
    elif file_format == "safetensors":
        fastio.save(state, path, policy="posix", durable=False)
        made.append((path.read_bytes(), state))
        made.append((safetensors.torch.save(state, {"made": "here"}), state))
    else:
        fastio.save(tensor, path, policy="posix", durable=False)
        made.append((path.read_bytes(), tensor))
        numpy.save(path, tensor.numpy())
        made.append((path.read_bytes(), tensor))
    return made


def by_library(file_format: str, path: Path) -> Any:
    """Load a file with the format's own library."""
    if file_format == "pt":
        return torch.load(path, weights_only=True)
    if file_format == "safetensors":
        return safetensors.torch.load_file(path)
    return torch.from_numpy(numpy.load(path, allow_pickle=False))


def same(one: Any, other: Any, layout: bool) -> bool:
    """Whether two objects are equal bit for bit; with ``layout``, also in strides, whole storages and dict order."""
    if isinstance(one, torch.Tensor):
        if type(one) is not type(other) or (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        if layout and (one.stride(), one.storage_offset()) != (other.stride(), other.storage_offset()):
            return False
        if not layout:
            one, other = one.contiguous(), other.contiguous()
        return torch.equal(_memory(one), _memory(other))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        keys = list(one) == list(other) if layout else one.keys() == other.keys()
        return keys and all(same(one[key], other[key], layout) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other, [layout] * len(one)))
    return bool(one == other) or repr(one) == repr(other)  # NaN


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())  # type: ignore[call-overload, no-any-return]


class Judge:
    """Runs cases of one format and size, and collects the problems."""

    def __init__(self, file_format: str, size: str, folder: Path) -> None:
        self.format = file_format
        self.large = size == "large"
        self.path = folder / f"damaged.{file_format}"
        self.originals = originals(file_format, size, folder)
        self.errors: Counter[str] = Counter()
        self.objects = 0
        self.problems: dict[str, list[str]] = {}  # by problem

    def case(self, number: int) -> None:
        good, value = self.originals[number % len(self.originals)]
        name, damaged = mutations.mutate(self.format, good, number, self.large)
        self.path.unlink(missing_ok=True)  # ext4 flushes a file that is truncated to 0 and written again
        self.path.write_bytes(damaged)
        policy = POLICIES[number // len(self.originals) % len(POLICIES)]
        problem = self._judge(value, policy, forged=name == "zip_forged") or self._judge_verify()
        if problem:
            where = f"{self.format} {number} ({name}, {len(damaged)} bytes, {policy}): {problem}"
            self.problems.setdefault(problem[:60], []).append(where)

    def _judge(self, value: Any, policy: str, forged: bool) -> str:
        try:
            loaded = fastio.load(self.path, policy=policy)
        except fastio.FastIOError as error:
            self.errors[type(error).__name__] += 1
            return ""
        except Exception as error:
            self.errors[type(error).__name__] += 1
            return self._judge_error(error)
        self.objects += 1
        in_layout = self.format == "pt"
        if same(loaded, value, in_layout):
            return ""
        if self.format == "pt" and not forged:
            return "damage passed as good"
        try:
            expected = by_library(self.format, self.path)
        except Exception as error:
            return f"loaded what the library refuses with {type(error).__name__}: {error}"
        return "" if same(loaded, expected, in_layout) else "another object than the library's"

    def _judge_error(self, error: Exception) -> str:
        said = f"{type(error).__name__}: {str(error)[:200]}"
        try:
            by_library(self.format, self.path)
        except Exception as other:
            if isinstance(other, FOREIGN_ERRORS[self.format]) and isinstance(error, type(other)):
                return ""
            said += f"; the library: {type(other).__name__}: {str(other)[:200]}"
        return said

    def _judge_verify(self) -> str:
        try:
            fastio.verify(self.path)
        except fastio.FastIOError:
            return ""
        except Exception as error:
            return f"verify: {type(error).__name__}: {str(error)[:200]}"
        return ""


def main() -> None:
    """Run the cases; the report is the last line of the output."""
    file_format, size, count, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    warnings.simplefilter("ignore")  # numpy's about the headers of damaged files
    judge = Judge(file_format, size, folder)
    with open(folder / f"{file_format}.case", "w+b") as file:
        file.truncate(8)
        at = mmap.mmap(file.fileno(), 8)  # the parent reads the current case here if this process dies
    for number in range(WARM_UP):  # warm up every code path before memory is counted
        signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_CASE)  # its default action ends the process, in C too
        judge.case(number)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE[size],) * 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(WARM_UP, count):
        at[:] = number.to_bytes(8, "little")
        signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_CASE)
        judge.case(number)
    signal.setitimer(signal.ITIMER_REAL, 0)
    report = {
        "cases": count,
        "objects": judge.objects,
        "errors": dict(judge.errors),
        "problems": {kind: [len(found), *found[:3]] for kind, found in judge.problems.items()},
        "grown": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
