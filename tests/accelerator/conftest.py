"""Runs each file of tests in a Python of its own, in which the simulated accelerator is loaded.

A process that has loaded it cannot unload it, and cannot load it once autograd's threads exist. So a test is run, with
the others that were chosen from its file, by a second pytest, whose outcome is reported here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

import compile_device
import simulated

_CHILD = "FASTIO_SIMULATED_ACCELERATOR"
_IS_CHILD = _CHILD in os.environ
_IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
_OUTCOMES = pytest.StashKey[dict[Path, dict[str, str]]]()

if _IS_CHILD:
    simulated.load()


@pytest.fixture(autouse=True)
def clean_devices() -> Iterator[None]:
    """Devices without errors, with the settings and the trace of a new process."""
    if not _IS_CHILD:
        yield
        return
    simulated.reset()
    yield
    lost, leaked = simulated.unraised_error(), simulated.leaks()
    simulated.reset()
    assert not lost
    assert not leaked


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if _IS_CHILD:
        return None
    if not compile_device.has_compiler() and not _IN_CI:
        pytest.skip("no C++ compiler (g++ or c++) on PATH")
    outcomes = pyfuncitem.session.stash.setdefault(_OUTCOMES, {})
    if pyfuncitem.path not in outcomes:
        outcomes[pyfuncitem.path] = _run_file(pyfuncitem)
    outcome = outcomes[pyfuncitem.path][pyfuncitem.name]
    if outcome.startswith("skipped"):
        pytest.skip(outcome)
    if outcome:
        pytest.fail(outcome, pytrace=False)
    return True


def _run_file(called: pytest.Function) -> dict[str, str]:
    """What went wrong in each chosen test of a file, by name; an empty text: it passed."""
    chosen = [item for item in called.session.items if item.path == called.path]
    folder = called.session.config.rootpath / "build" / "accelerator"
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"{called.path.stem}.{os.getpid()}.xml"
    names = [f"{item.path}::{item.nodeid.partition('::')[2]}" for item in chosen]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}"]
    settings = ["-c", str(called.session.config.inipath), f"--rootdir={called.session.config.rootpath}"]
    result = subprocess.run(
        [*command, *settings, *names], env=os.environ | {_CHILD: "1"}, capture_output=True, text=True, check=False
    )
    if not report.exists():
        return dict.fromkeys(
            (item.name for item in chosen), f"pytest ended with {result.returncode}:\n{result.stdout}{result.stderr}"
        )
    cases = {case.get("name"): case for case in ET.parse(report).iter("testcase")}
    report.unlink()
    return {item.name: _problem(cases.get(item.name), result) for item in chosen}


def _problem(case: ET.Element | None, result: subprocess.CompletedProcess[str]) -> str:
    if case is None:
        return f"did not run; pytest ended with {result.returncode}:\n{result.stdout}{result.stderr}"
    skips = [f"skipped: {each.get('message')}" for each in case.findall("skipped")]
    failures = [f"{each.get('message')}\n{each.text}" for kind in ("failure", "error") for each in case.findall(kind)]
    return "\n".join(failures or skips)
