"""fastio-bench in tests: its children are forked on request, and it does not wait for an idle disk."""

from __future__ import annotations

import os

import pytest

import warm_python


@pytest.fixture(autouse=True)
def busy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip ``os.sync``, by which fastio-bench waits for an idle disk: it would write out what all other tests wrote."""
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastio-bench forks its children from a process that has imported torch, instead of starting them."""
    warm_python.fork_children_of_bench(monkeypatch)
