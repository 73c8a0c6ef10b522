"""Starts training processes and reads their results."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict

from fastio_bench.harness.children import completed
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.offload.training_job import Job, Moved, Run

# With this, freed large blocks go back to the system, so the peak of resident memory is that of live tensors. It costs
# page faults, so time is measured without it.
EXACT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
_CHILD = "import sys; sys.path[:] = {path!r}; from fastio_bench.offload.training_job import main; main(sys.argv[1])"


class OutOfMemoryError(ChildError):
    """The process ran out of memory."""


def train(job: Job, environment: Mapping[str, str] | None = None) -> Run:
    """Do the job in a fresh process.

    Raises OutOfMemoryError if it ran out of memory, and ChildError for any other failure.
    """
    command = [sys.executable, "-c", _CHILD.format(path=sys.path), json.dumps(asdict(job))]
    variables = {**os.environ, **(environment or {})}
    child = completed(command, env=variables)
    if child.returncode or not child.stdout.strip():
        last = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if child.returncode == -signal.SIGABRT and "bad_alloc" in child.stderr:  # thrown outside of any C++ handler
            raise OutOfMemoryError(f"the process ended with status {child.returncode}: {last}")
        raise ChildError(f"{job.way}: the process ended with status {child.returncode}: {last}")
    answer = json.loads(child.stdout.splitlines()[-1])
    if "out_of_memory" in answer:
        raise OutOfMemoryError(answer["out_of_memory"])
    if "error" in answer:
        raise ChildError(f"{job.way}: {answer['error']}")
    run = answer["run"]
    return Run(**{**run, "moved": None if run["moved"] is None else Moved(**run["moved"])})
