"""A pool of ranks for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ranks import WORLD, Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(WORLD, tmp_path_factory.mktemp("ranks")) as running:
        yield running
