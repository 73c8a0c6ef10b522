"""Which tools over heavy libraries are considered. That `import fastio` imports none: tests/api/test_packaging.py."""

from __future__ import annotations

import sys

import pytest

from fastio.transports import registry
from fastio.transports.registry import Tool

CUDA, CPU = frozenset({"cuda"}), frozenset({"cpu"})
LIBRARIES = ("kvikio", "nvidia.dali")


@pytest.fixture(autouse=True)
def _none_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in LIBRARIES:
        monkeypatch.delitem(sys.modules, library, raising=False)
    monkeypatch.setattr(registry, "find", lambda name: Tool(name, None, "made by the test"))


def considered(
    monkeypatch: pytest.MonkeyPatch, installed: bool, devices: frozenset[str], op: str, form: str
) -> set[str]:
    """Which of the two tools a dictionary may consider."""
    monkeypatch.setattr(registry, "is_installed", lambda _: installed)
    return {tool.name for tool in registry.at_hand(devices, op, form)} & {"gds", "dali"}


def test_an_installed_library_is_considered_for_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert considered(monkeypatch, True, CUDA, "load", "npy") == {"gds", "dali"}
    for op, form in ("load", "pt"), ("save", "npy"), ("save", "pt"):
        assert considered(monkeypatch, True, CUDA, op, form) == {"gds"}
    assert considered(monkeypatch, False, CUDA, "load", "npy") == set()


def test_host_memory_needs_a_library_that_the_program_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("npy", "pt"):
        assert considered(monkeypatch, True, CPU, "load", form) == set()
    monkeypatch.setitem(sys.modules, "nvidia.dali", sys)
    assert considered(monkeypatch, False, CPU, "load", "npy") == {"dali"}
    assert considered(monkeypatch, False, CPU, "load", "pt") == set()


@pytest.mark.parametrize(("library", "found"), [("json", True), ("json.decoder", True), ("no_such.library", False)])
def test_looking_for_a_library(library: str, found: bool) -> None:
    assert registry.is_installed(library) is found
