"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

import subprocess
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that steps wait for before they are written."""
    from fastio.checkpoint.saving import writing

    go = threading.Event()
    save = writing.save_layout

    def wait_and_save(*arguments: Any) -> Any:
        assert go.wait(20)
        return save(*arguments)

    monkeypatch.setattr(writing, "save_layout", wait_and_save)
    yield go
    go.set()


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the writer process: its start takes two seconds of a core."""
    import warm_python
    from fastio.checkpoint.writer_process import process

    module = types.SimpleNamespace(**{**vars(subprocess), "Popen": warm_python.WarmPopen})
    monkeypatch.setattr(process, "subprocess", module)
