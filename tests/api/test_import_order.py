"""Any module of the library may be the first one that a program imports: no import leads back to itself half-way."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import fastio

CODE = """
import importlib, os, sys
import torch

assert not [name for name in sys.modules if name.startswith("fastio.")]

def imported(name):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        importlib.import_module(name)
        status = 0
    except ImportError as error:
        status = 0 if "circular" not in str(error) else 1  # an optional library may be missing
        if status:
            print(name, error, file=sys.stderr)
    finally:
        os._exit(status)

bad = [name for name in sys.argv[1:] if not imported(name)]
print(*bad)
"""

ALL = sorted(module.name for module in pkgutil.walk_packages(fastio.__path__, "fastio."))
FEW = [name for name in ALL if name.count(".") == 1 and not name.rpartition(".")[2].startswith("_")]


@pytest.mark.parametrize(
    "names",
    [[*FEW, "fastio.models.conversion.dcp_source"], pytest.param(ALL, marks=pytest.mark.nightly)],
    ids=["few", "all"],
)
def test_each_module_can_be_imported_first(names: list[str]) -> None:
    found = subprocess.run([sys.executable, "-c", CODE, *names], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.split()) == (0, []), found.stderr
