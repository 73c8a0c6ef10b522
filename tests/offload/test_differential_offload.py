"""Compares Offload and Hybrid with plain torch on a seeded part of torch's test databases: see ``differential/``."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("expecttest", reason="torch's databases need it: pip install expecttest")

FOLDER = Path(__file__).parents[1] / "support" / "differential"
# Importing torch's databases takes seconds: one process does it, and forks for each line of code.
FORKING = """
import os, sys
sys.path.insert(0, sys.argv[1])
import database_runs, hybrid, offload
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        code, said, complaint, *arguments = eval(line)
        for number, path in ((1, said), (2, complaint)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        sys.argv = arguments
        exec(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
SOUND = """
runs = {"offload.py": offload.OffloadRuns, "hybrid.py": hybrid.HybridRuns}[os.path.basename(arguments[0])]
sys.exit(database_runs.main(arguments[1:], None, runs))
"""
BROKEN = """
from fastio.offload import manager
restore = manager.Offload.restore
manager.Offload.restore = lambda self, handle: restore(self, handle).clone().fill_(1)
sys.exit(offload.main(["--seed", "1", "--examples", "40"]))
"""
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run code with arguments in a process that has imported torch's databases; returns its status and output."""
    folder, pipe = tmp_path_factory.mktemp("runs"), subprocess.PIPE
    command = [sys.executable, "-c", FORKING, str(FOLDER)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as forking:
        assert forking.stdin is not None
        assert forking.stdout is not None

        def run(code: str, *arguments: str) -> tuple[int, str]:
            said, complaint = (folder / name for name in ("said", "complaint"))
            for path in (said, complaint):
                path.unlink(missing_ok=True)
            print([code, str(said), str(complaint), *arguments], file=forking.stdin, flush=True)
            status = int(forking.stdout.readline())
            assert complaint.read_text() == ""
            return status, said.read_text()

        yield run
        forking.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "examples", "least"),
    [
        pytest.param("offload.py", 24, 240, id="offload"),
        pytest.param("hybrid.py", 12, 36, id="hybrid"),
        pytest.param("offload.py", 200, 2000, id="offload-all", marks=pytest.mark.nightly),
        pytest.param("hybrid.py", 100, 300, id="hybrid-all", marks=pytest.mark.nightly),
    ],
)
def test_gradients_and_errors_equal_those_of_plain_torch(script: str, examples: int, least: int, ran: Run) -> None:
    """Each run of Offload and Hybrid is compared with plain torch; by night about 2,900 and 400 of them.

    ``python tests/support/differential/offload.py --examples 0 --seed 1`` runs each entry of the databases once.
    """
    status, output = ran(SOUND, str(FOLDER / script), "--seed", "8", "--examples", str(examples))
    assert status == 0, output
    runs = re.search(r"(\d+) runs", output)
    assert runs is not None
    assert int(runs[1]) >= least, output
    if script == "offload.py":
        moved = re.search(r"(\d+) disk reads", output)
        assert moved is not None
        assert int(moved[1]) > least // 4, output  # on a slow disk fewer


@pytest.mark.slow
def test_difference_reports_the_command_that_repeats_it(ran: Run) -> None:
    status, output = ran(BROKEN, str(FOLDER / "offload.py"))
    assert status == 1, output
    assert re.search(r"gradients \[.*\] differ\nagain: python \S+ --seed 1 --start \d+ --examples 1\n$", output), output
