"""Places to save to and load from, each empty, and a cache of its own for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_places import RangedStore

# A bucket of a real server, with the endpoint and credentials in the environment: see .ci/s3_tests.py.
BUCKET = os.environ.get("FASTIO_TEST_BUCKET", "")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder; child processes inherit it."""
    monkeypatch.setenv("FASTIO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "remote"


@pytest.fixture(params=["memory", "file", "ranged", *(["s3"] if BUCKET else [])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty folder."""
    if request.param == "file":
        (tmp_path / "place").mkdir()
        return f"file://{tmp_path}/place"
    name = uuid.uuid4().hex
    return f"{BUCKET}/{name}" if request.param == "s3" else f"{request.param}://bucket/{name}"


@pytest.fixture
def store() -> Iterator[type[RangedStore]]:
    """The stand-in for an object store, empty, whose calls are counted and may fail."""
    RangedStore.reset()
    yield RangedStore
    RangedStore.reset()
