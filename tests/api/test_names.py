"""What ``import fastio`` shows: every public name, every error that reaches a caller, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import pydoc
import rlcompleter
import subprocess
import sys
from collections.abc import Iterator

import fastio

PACKAGES = {"checkpoint", "dicts", "distributed", "hybrid", "integrations", "offload", "volumes"}
# Caught inside fastio, which raises another error in their place.
INTERNAL = {
    *("ArenaFullError", "DamagedError", "Differs", "NativeError", "NeedsTorchError", "NoThreadError"),
    *("OtherPickleError", "StepGoneError"),
}
HIDDEN = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "safetensors":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
from fastio import *
import fastio
assert set(fastio.__all__) <= set(globals())
"""


def modules() -> Iterator[str]:
    """All modules that need no optional library."""
    for module in pkgutil.walk_packages(fastio.__path__, "fastio.", onerror=lambda name: None):
        if not module.name.startswith(("fastio.testing", "fastio.integrations.", "fastio.cli", "fastio.backends.")):
            yield module.name


def test_dir_shows_the_public_names_and_packages() -> None:
    assert set(dir(fastio)) == {*fastio.__all__, *PACKAGES}
    assert sorted(fastio.__all__) == fastio.__all__
    assert {"Checkpointer", "Offload", "Hybrid", "load_model", "safe_open", "save", "load"} <= set(dir(fastio))
    for name in dir(fastio):
        assert getattr(fastio, name) is not None


def test_dir_is_complete_before_anything_heavy_is_imported() -> None:
    program = "import sys, fastio; print(*dir(fastio)); print('fastio.offload' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names, imported = done.stdout.splitlines()
    assert (names.split(), imported) == (dir(fastio), "False")


def test_completion_offers_what_dir_shows() -> None:
    found = rlcompleter.Completer({"fastio": fastio}).attr_matches("fastio.")
    assert {name.rstrip("()").partition(".")[2] for name in found} == {name for name in dir(fastio) if name[0] != "_"}


def test_help_describes_all_public_classes_and_functions() -> None:
    shown = pydoc.render_doc(fastio, renderer=pydoc.plaintext)
    for name in fastio.__all__:
        if name != "__version__":
            assert f"    {name}(" in shown or f"class {name}(" in shown, name
    assert "annotations" not in shown.split("PACKAGE CONTENTS")[0]
    assert "\nDATA\n" not in shown


def test_help_begins_with_what_is_public() -> None:
    """pydoc lists all modules of a package: the description comes before, and names each function and entry class."""
    described = (fastio.__doc__ or "").replace(",", " ").split()
    functions = {name for name in fastio.__all__ if inspect.isfunction(getattr(fastio, name))}
    assert functions | {"Checkpointer", "Offload", "Hybrid"} <= set(described)


def test_a_star_import_needs_no_optional_library() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_error_that_reaches_callers_is_in_fastio() -> None:
    found: dict[str, type[BaseException]] = {}
    for name in modules():
        for value in vars(importlib.import_module(name)).values():
            if inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ == name:
                found[value.__qualname__] = value
    missing = {name for name in found if not name.startswith("_") and name not in fastio.__all__} - INTERNAL
    assert not missing
    exported = {name for name in fastio.__all__ if name in found}
    assert {"FastIOError", "ActivationLostError", "GpuBudgetError", "StoreGoneError", "UnsupportedError"} <= exported
    assert all(getattr(fastio, name) is found[name] for name in exported)
