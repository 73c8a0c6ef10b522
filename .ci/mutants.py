"""Changes one operator or constant of fastio at a time, and sees whether tests fail: ``make nightly ONLY=mutants``.

A change that no test notices points at code that is not guarded, or makes no difference to what is computed (the
size of a buffer, say). Each is made in a copy of the installed package, which the tests import instead; which ones are
made follows from --seed. The exit status is 1 if less than --least of at least ten were noticed.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Files and folders of the package, and the tests that guard them, which take seconds.
GUARDS = {
    "files/npy_header.py": "formats/test_npy_header.py formats/test_acceptance_npy.py",
    "formats/npy.py": "formats/test_acceptance_npy.py formats/test_safetensors_and_npy.py",
    "formats/safetensors": "formats/test_acceptance_safetensors.py formats/test_safetensors_dtypes.py "
    "formats/test_safetensors_and_npy.py formats/test_foreign_files.py",
    "formats/pt": "formats/test_pt.py formats/test_pt_offsets.py formats/test_pt_values.py formats/test_unpickler.py "
    "formats/test_view_clones.py",
    "dicts": "dictionaries api/test_policy.py",
    "offload/planning": "offload/test_plan.py offload/test_saved_tensors.py",
    "hybrid/planning": "hybrid/test_plan.py hybrid/test_timeline.py",
    "checkpoint": "checkpoint/test_checkpointer.py checkpoint/test_incremental.py checkpoint/test_restore_into.py "
    "checkpoint/test_types.py",
}
_ENOUGH = 10  # changes, of which a share is judged
CHANGED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "*": "//", "//": "*",
    "%": "*", "<<": ">>", ">>": "<<", "and": "or", "or": "and", "True": "False", "False": "True", "in": "not in",
    "not": "", "min": "max", "max": "min",
}  # fmt: skip


def mutants(source: str) -> Iterator[tuple[int, str]]:
    """What a module can be changed into, and in which line, but for the texts of errors."""
    lines = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NUMBER and token.string.isdigit():
            new = str(int(token.string) + 1)
        elif token.string in CHANGED and token.type in (tokenize.OP, tokenize.NAME):
            new = CHANGED[token.string]
        else:
            continue
        (row, start), (_, end) = token.start, token.end
        line = lines[row - 1]
        if not line.startswith((" ", "\t")) or 'f"' in line or line.split()[0] in ("raise", "def", "for"):
            continue
        changed = "".join([*lines[: row - 1], line[:start] + new + line[end:], *lines[row:]])
        try:
            compile(changed, "mutant", "exec")
        except SyntaxError:
            continue
        yield row, changed


def noticed(copy: Path, tests: str, limit: float | None = None) -> bool:
    """Whether the tests fail, or do not end in ``limit`` seconds, with the package in the folder ``copy``."""
    pytest = [f"{ROOT}/.venv/bin/pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not nightly"]
    files = [str(ROOT / "tests" / name) for name in tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*pytest, *files], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    """Try mutants for ``--minutes``; 1 if too many were not noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.7, help="the share that must be noticed")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    tried = caught = 0
    limits: dict[str, float] = {}  # seconds, for tests that were seen to pass: some changes never end
    with tempfile.TemporaryDirectory(prefix="fastio-mutants-") as folder:
        package = Path(folder) / "fastio"
        shutil.copytree(Path(sysconfig.get_path("purelib")) / "fastio", package)
        end = time.monotonic() + asked.minutes * 60
        while time.monotonic() < end:
            where, tests = chance.choice(list(GUARDS.items()))
            modules = sorted(package.joinpath(where).rglob("*.py")) or [package / where]
            module = chance.choice(modules)
            source = module.read_text()
            if not (made := list(mutants(source))):
                continue
            if tests not in limits:
                began = time.monotonic()
                if noticed(Path(folder), tests):
                    raise SystemExit(f"{tests}: these tests fail without any change")
                limits[tests] = 60 + 5 * (time.monotonic() - began)
            row, changed = chance.choice(made)
            module.write_text(changed)
            tried += 1
            found = noticed(Path(folder), tests, limits[tests])
            caught += found
            module.write_text(source)
            if not found:
                line = f"{module.relative_to(folder)}:{row}"
                print(f"not noticed: {line}: {changed.splitlines()[row - 1].strip()}", flush=True)
    if not tried:
        raise SystemExit(f"no change was tried in {asked.minutes:g} minutes")
    print(f"{caught} of {tried} changes were noticed (seed {asked.seed})")
    return int(tried >= _ENOUGH and caught < asked.least * tried)


if __name__ == "__main__":
    sys.exit(main())
