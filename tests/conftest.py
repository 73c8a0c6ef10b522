"""Shared fixtures and hooks: tests use the installed package, an empty working folder and empty dictionaries."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from faults import Server, build_shim

pytest_plugins = ["accelerators"]

_NUMBERS = itertools.count()
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

# A deadline would test the wall clock. Hypothesis's own settings for CI (no random seed) stay. By night:
# --hypothesis-profile=nightly -m hypothesis.
settings.register_profile("fastio", settings(deadline=None, max_examples=50))
settings.register_profile("nightly", settings(deadline=None, max_examples=1000))
settings.load_profile("fastio")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without the native part: a suite that skipped it would prove nothing.

    Also enable Ctrl-C, which a shell disables in background processes and their children; and let torch compute with
    one thread where tests run side by side: threads of several would wait for each other.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of child processes
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        importlib.import_module("fastio._native")
    except ImportError as error:
        raise pytest.UsageError(
            f"fastio._native cannot be imported ({error}). It is built by installing fastio: run `make test`, "
            f"or `pip install --no-build-isolation .`, and start pytest itself, not `python -m pytest`"
        ) from error


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side, run the longest files first, so that no process waits for the other's last file."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        weights: Counter[Path] = Counter()
        for item in items:
            weights[item.path] += 50 if item.get_closest_marker("slow") else 1
        items.sort(key=lambda item: -weights[item.path])


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of garbage collections, which tests ask for by the hundreds."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> list[str]:
    fastio, native = (importlib.import_module(name) for name in ("fastio", "fastio._native"))
    return [f"fastio: {fastio.__file__}", f"native: {native.__file__}", f"torch: {torch.__version__}"]


@pytest.fixture(scope="session", autouse=True)
def empty_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run in an empty working folder, with dictionaries in another one; child processes inherit both.

    A child Python started at the repository's root would import the source tree, which has no native part.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.setenv("FASTIO_DICTIONARY_DIR", str(tmp_path_factory.mktemp("dictionaries")))
        yield


@pytest.fixture(autouse=True)
def own_dictionaries(empty_folders: None) -> Iterator[None]:
    """Begin each test with dictionaries that know nothing: no choice depends on what an earlier test measured."""
    folder = Path(os.environ["FASTIO_DICTIONARY_DIR"]) / f"test-{next(_NUMBERS)}"
    dicts = importlib.import_module("fastio.dicts")
    dicts.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTIO_DICTIONARY_DIR", str(folder))
        yield
    dicts.forget()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def compiler() -> str:
    """The C compiler, for tests that build an LD_PRELOAD library. It is required in CI."""
    path = shutil.which("gcc") or shutil.which("cc")
    if path is None:
        (pytest.fail if IN_CI else pytest.skip)("no C compiler (gcc or cc) on PATH")
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Iterator[Server]:
    """A server that starts programs with injected faults."""
    folder = tmp_path_factory.mktemp("server")
    with Server(folder, build_shim(compiler, folder)) as running:
        yield running


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that starts programs without a library that injects faults."""
    with Server(tmp_path_factory.mktemp("plain-server"), None) as running:
        yield running


@pytest.fixture
def progress_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints report their progress at once instead of after a delay."""
    monkeypatch.setattr("fastio.engine.delayed_progress._SECONDS", 0.0)
