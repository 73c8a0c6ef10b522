"""A third party's transport, as a package of its own: installed, it is a tool like any other, with nothing to set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the plug-in is installed into."""
    target = tmp_path_factory.mktemp("site")
    build = tmp_path_factory.mktemp("build")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", f"--config-settings=build-dir={build}")
    subprocess.run([*pip, *offline, "--target", target, repository / "tests" / "plugin"], check=True)
    return target


def run(program: str, site: Path | None, folder: Path) -> Any:
    """What a new process prints as JSON; with the plug-in on its path, or without."""
    settings = {"PYTHONPATH": str(site)} if site else {}
    environment = {**os.environ, **settings, "FASTIO_DICTIONARY_DIR": str(folder / "dictionaries")}
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folder / "file.pt")],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


TOOLS = """
import json, fastio
print(json.dumps({t.name: [t.available, t.reason, t.cure, t.operations, t.formats, t.devices] for t in fastio.tools()}))
"""


def test_it_is_among_the_tools(installed: Path, tmp_path: Path) -> None:
    tools = run(TOOLS, installed, tmp_path)
    assert tools["tortoise"] == [True, "", "", ["load", "save"], ["pt", "safetensors", "npy"], ["cpu"]]
    assert tools["hare"][:3] == [False, "it is asleep", "wake it"]
    assert "tortoise" not in run(TOOLS, None, tmp_path)


NAMED = """
import json, sys, torch, fastio
state = {"weight": torch.randn(300, 1000), "bias": torch.arange(7, dtype=torch.bfloat16), "step": 3}
with fastio.record() as transfers:
    fastio.save(state, sys.argv[1], policy="tortoise")
    loaded = fastio.load(sys.argv[1], policy="tortoise")
    plain = torch.load(sys.argv[1], weights_only=True)
for got in (loaded, plain):
    assert torch.equal(got["weight"], state["weight"]) and torch.equal(got["bias"], state["bias"]) and got["step"] == 3
fastio.verify(sys.argv[1])
print(json.dumps([[t.op, t.tool, t.route, t.verified, list(t.fallbacks)] for t in transfers]))
"""


def test_it_moves_tensors_when_it_is_asked_for(installed: Path, tmp_path: Path) -> None:
    (save, load) = run(NAMED, installed, tmp_path)
    assert save[:3] == ["save", "tortoise", "cached"]
    assert load[:4] == ["load", "tortoise", "cached", True]


AUTOMATIC = """
import json, sys, torch, fastio
state = {"weight": torch.randn(1024, 1024)}
tried = []
with fastio.record() as transfers:
    for _ in range(80):
        fastio.save(state, sys.argv[1], durable=False)
        assert torch.equal(fastio.load(sys.argv[1])["weight"], state["weight"])
    tried = sorted({(t.op, t.tool) for t in transfers})
print(json.dumps(tried))
"""


def test_it_turns_up_in_the_dictionaries_by_itself(installed: Path, tmp_path: Path) -> None:
    tried = run(AUTOMATIC, installed, tmp_path)
    assert ["save", "tortoise"] in tried
    assert ["load", "tortoise"] in tried
    kept = [path.read_text() for path in (tmp_path / "dictionaries").rglob("*.json")]
    assert any("tortoise" in text for text in kept), "no dictionary on disk knows it"
    assert "tortoise" not in {tool for _, tool in run(AUTOMATIC, None, tmp_path)}


MARKS = "import json, fastio; from fastio.dicts import fingerprint; print(json.dumps(fingerprint.of('.').tools))"


def test_its_version_is_one_of_what_makes_times_comparable(installed: Path, tmp_path: Path) -> None:
    (own,) = {*run(MARKS, installed, tmp_path).split(", ")} - {*run(MARKS, None, tmp_path).split(", ")}
    assert own.split(" ")[1:] == ["1.0"], own


CHANGING = """
import itertools, json, sys, threading, torch, fastio
tensor, ended = torch.zeros(24 << 20, dtype=torch.uint8), threading.Event()
def change():
    for number in itertools.count(1):
        if ended.is_set():
            return
        tensor.fill_(number % 256)
thread = threading.Thread(target=change)
thread.start()
try:
    for _ in range(4):
        fastio.save({"changing": tensor, "still": torch.ones(30000)}, sys.argv[1], policy="tortoise")
        verified = fastio.verify(sys.argv[1]).checksummed
finally:
    ended.set()
    thread.join()
print(json.dumps(verified))
"""


def test_its_file_has_checksums_of_what_it_wrote(installed: Path, tmp_path: Path) -> None:
    assert run(CHANGING, installed, tmp_path)
