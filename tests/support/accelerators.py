"""A pytest plugin that runs tests on an accelerator: on CUDA if there is a GPU, else on the simulated accelerator.

Tests marked ``gpu`` run on either, those marked ``simulated`` on the simulated one. A process that has loaded that one
cannot unload it, and cannot load it once autograd's threads exist. So a second pytest runs all such tests of a file,
in a forked process without such threads, and the first one reports what the second one found.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import simulated
from warm_python import WarmPopen

_PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
_REPORTS = "FASTIO_SIMULATED_ACCELERATOR"  # in the second pytest: the file for its reports
_IS_CHILD = _REPORTS in os.environ
_IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
_FOUND = pytest.StashKey[dict[Path, dict[str, list[dict[str, Any]]]]]()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # that the driver is too old for this torch
    _HAS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if _HAS_CUDA and not _IS_CHILD else "simulated"
"""The type of the devices that tests marked ``gpu`` use."""

if _IS_CHILD:
    simulated.use()


def _needs_child(item: pytest.Item) -> bool:
    return item.get_closest_marker("simulated") is not None or (
        DEVICE == "simulated" and item.get_closest_marker("gpu") is not None
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if _IS_CHILD or not _needs_child(item):
        return None
    found = item.session.stash.setdefault(_FOUND, {})
    if item.path not in found:
        found[item.path] = _run_file(item)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for serialized in found[item.path].get(item.nodeid) or found[item.path][""]:
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=serialized)
        report.nodeid, report.location = item.nodeid, item.location
        if isinstance(report.longrepr, list):  # of a skipped test: JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)  # what earlier tests of this file have set up
    return True


def _run_file(item: pytest.Item) -> dict[str, list[dict[str, Any]]]:
    """The reports of each test of a file that needs the simulated accelerator; by "": that of one that did not run."""
    chosen = [each for each in item.session.items if each.path == item.path and _needs_child(each)]
    if (missing := simulated.why_not_buildable()) and not _IN_CI:
        return {"": [_report(item, "skipped", (str(item.path), 0, "; ".join(missing)))]}
    names = [f"{each.path}::{each.nodeid.partition('::')[2]}" for each in chosen]
    settings = ["-c", str(item.config.inipath), f"--rootdir={item.config.rootpath}"]
    command = [sys.executable, "-c", _PYTEST, "-m=", "-p", "no:cacheprovider", "-p", "no:xdist", *settings]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reports"
        path.touch()
        environment = os.environ | {_REPORTS: str(path)}
        pipe = subprocess.PIPE
        with WarmPopen(  # in another folder than the sources, which have no native part
            [*command, *names], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
        ) as child:
            said, complaint = child.communicate()
        reports: dict[str, list[dict[str, Any]]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            nodeid, serialized = json.loads(line)
            reports.setdefault(nodeid, []).append(serialized)
    message = f"it did not run: pytest on the simulated accelerator ended with {child.returncode}\n{said}"
    reports[""] = [_report(item, "failed", message + complaint)]
    return reports


def _report(item: pytest.Item, outcome: Any, what: Any) -> dict[str, Any]:
    report = pytest.TestReport(item.nodeid, item.location, {}, outcome, what, "call")
    made: dict[str, Any] = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
    return made


if _IS_CHILD:

    @pytest.fixture(autouse=True)
    def clean_devices() -> Iterator[None]:
        """Devices without errors, with the settings and the trace of a new process."""
        simulated.reset()
        yield
        lost = simulated.unraised_error()
        simulated.reset()
        assert not lost

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        yield
        if nextitem is None or item.get_closest_marker("simulated"):
            from fastio.testing import load_contract
            from fastio.transports import registry

            registry._tools.clear()  # transports keep their pinned memory
            load_contract.made.cache_clear()
            gc.collect()
            assert not simulated.leaks()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(report: pytest.TestReport) -> None:
        serialized = _config.hook.pytest_report_to_serializable(config=_config, report=report)
        with open(os.environ[_REPORTS], "a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, serialized]) + "\n")

    def pytest_configure(config: pytest.Config) -> None:
        global _config
        _config = config

    _config: pytest.Config


@pytest.fixture
def kvikio() -> Iterator[Any]:
    """kvikio for the devices that tests marked ``gpu`` use: on CUDA devices itself, else the stand-in."""
    if DEVICE == "cuda":
        yield pytest.importorskip("kvikio")
        return
    import kvikio_stand_in

    with kvikio_stand_in.installed() as stand_in:
        yield stand_in


def torch_module() -> Any:
    """torch's module for the devices that tests marked ``gpu`` use."""
    return torch.get_device_module(DEVICE)


def keep_busy() -> None:
    """Queue work of about 10 ms on the current stream."""
    if DEVICE == "cuda":
        torch.cuda._sleep(20_000_000)
    else:
        matrix = torch.ones(512, 512, device=DEVICE)
        for _ in range(4):
            matrix = matrix @ matrix


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[None]:
    """Let the current device allocate no more than ``nbytes`` beyond what is allocated now."""
    torch_module().empty_cache()
    limit = torch_module().memory_allocated() + nbytes
    if DEVICE == "cuda":
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    else:
        simulated.configure(memory_limit=limit)
    try:
        yield
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0)
        else:
            simulated.configure(memory_limit=16 << 30)
