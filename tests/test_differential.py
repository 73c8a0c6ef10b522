"""What fastio saves and loads is what torch saves and loads: some thousand examples, in processes of four kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from differential import run as command
from differential import schedules
from differential.kinds import KINDS

SEED = 20261125
EXAMPLES = 2400  # of all kinds together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    """Holds the library of the schedules."""
    return schedules.build(tmp_path_factory.mktemp("differential")).parent


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_fastio_gives_what_torch_gives(folder: Path, kind: str) -> None:
    piece = command.run(kind, folder, ["--seed", str(SEED), "--first", "0", "--count", str(EXAMPLES)])
    assert piece.status == 0, "\n".join(piece.output)
    assert piece.examples == EXAMPLES // len(KINDS)
