"""Compares Offload and Hybrid with plain torch on a seeded part of torch's test databases: see ``differential/``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("expecttest", reason="torch's databases need it: pip install expecttest")

FOLDER = Path(__file__).parents[1] / "support" / "differential"
BROKEN = """
import sys
sys.path.insert(0, sys.argv[1])
import offload
from fastio.offload import manager
restore = manager.Offload.restore
manager.Offload.restore = lambda self, handle: restore(self, handle).clone().fill_(1)
sys.exit(offload.main(["--seed", "1", "--examples", "40"]))
"""


def ran(*command: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=600, check=False)
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "examples", "least"),
    [
        pytest.param("offload.py", 40, 400, id="offload"),
        pytest.param("hybrid.py", 20, 60, id="hybrid"),
        pytest.param("offload.py", 200, 2000, id="offload-all", marks=pytest.mark.nightly),
        pytest.param("hybrid.py", 100, 300, id="hybrid-all", marks=pytest.mark.nightly),
    ],
)
def test_gradients_and_errors_equal_those_of_plain_torch(script: str, examples: int, least: int) -> None:
    """Each run of Offload and Hybrid is compared with plain torch; by night about 2,900 and 400 of them.

    ``python tests/support/differential/offload.py --examples 0 --seed 1`` runs each entry of the databases once.
    """
    status, output = ran(str(FOLDER / script), "--seed", "8", "--examples", str(examples))
    assert status == 0, output
    runs = re.search(r"(\d+) runs", output)
    assert runs is not None
    assert int(runs[1]) >= least, output
    if script == "offload.py":
        moved = re.search(r"(\d+) disk reads", output)
        assert moved is not None
        assert int(moved[1]) > least // 4, output  # on a slow disk fewer


@pytest.mark.slow
def test_difference_reports_the_command_that_repeats_it() -> None:
    status, output = ran("-c", BROKEN, str(FOLDER))
    assert status == 1, output
    assert re.search(r"gradients \[.*\] differ\nagain: python \S+ --seed 1 --start \d+ --examples 1\n$", output), output
