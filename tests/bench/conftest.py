"""fastio-bench in tests: its children are forked unless a test needs fresh ones, and no idle disk is waited for."""

from __future__ import annotations

import os

import pytest

import warm_python


@pytest.fixture(autouse=True)
def busy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip ``os.sync``, by which fastio-bench waits for an idle disk: it would write out what all other tests wrote."""
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture(autouse=True)
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastio-bench forks its children from a process that has imported torch, instead of starting them."""
    warm_python.fork_children_of_bench(monkeypatch)


@pytest.fixture
def fresh_children(forked_children: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """fastio-bench starts its children, as it does for a user."""
    warm_python.start_children_of_bench(monkeypatch)
