"""Third-party transports in a package of their own: once installed, they are tools like any other."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_python


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the plug-in is installed."""
    target = tmp_path_factory.mktemp("site")
    build = tmp_path_factory.mktemp("build")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", f"--config-settings=build-dir={build}")
    subprocess.run([*pip, *offline, "--target", target, repository / "tests" / "support" / "plugin"], check=True)
    return target


# In a forked process fastio has been imported, and has looked for plug-ins.
FOUND = """
import sys
from fastio.dicts import fingerprint
from fastio.transports import registry
sys.path.insert(0, {site!r})
registry._plugins.update(registry._installed_plugins())
fingerprint.machine.cache_clear()
"""


def run(program: str, site: Path | None, folder: Path, **settings: str) -> Any:
    """Run a program in a process of its own, with ``site`` on its path if given; returns its last line, from JSON."""
    start = FOUND.format(site=str(site)) if site else ""
    environment = {**os.environ, **settings, "FASTIO_DICTIONARY_DIR": str(folder / "dictionaries")}
    ran = warm_python.run(start + program, str(folder / "file.pt"), folder=folder, environment=environment)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.slow
def test_its_author_runs_the_contract_of_transports(installed: Path, repository: Path, tmp_path: Path) -> None:
    """In a folder of its own, as in the plug-in's repository."""
    shutil.copy(repository / "tests" / "support" / "plugin" / "contract_of_tortoise.py", tmp_path)
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "contract_of_tortoise.py"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


TOOLS = """
import json, fastio
print(json.dumps({t.name: [t.available, t.reason, t.cure, t.operations, t.formats, t.devices] for t in fastio.tools()}))
"""


def test_plugin_tools_are_listed(installed: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    command, environment = [sys.executable, "-c", TOOLS], {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    tools = json.loads(ran.stdout.splitlines()[-1])
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


def test_plugin_saves_and_loads_when_named(installed: Path, tmp_path: Path) -> None:
    (save, load) = run(NAMED, installed, tmp_path)
    assert save[:3] == ["save", "tortoise", "cached"]
    assert load[:4] == ["load", "tortoise", "cached", True]


AUTOMATIC = """
import json, sys, torch, fastio
state = {"weight": torch.randn(1024, 1024)}
tried = set()
for _ in range(MOST):
    with fastio.record() as transfers:
        fastio.save(state, sys.argv[1], durable=False)
        assert torch.equal(fastio.load(sys.argv[1])["weight"], state["weight"])
    tried |= {(t.op, t.tool) for t in transfers}
    if {("save", "tortoise"), ("load", "tortoise")} <= tried:
        break
print(json.dumps(sorted(tried)))
"""


def test_plugin_is_tried_and_learned_automatically(installed: Path, tmp_path: Path) -> None:
    """How soon depends on the speeds of the others, which other programs change."""
    tried = run(AUTOMATIC.replace("MOST", "1000"), installed, tmp_path)
    assert ["save", "tortoise"] in tried
    assert ["load", "tortoise"] in tried
    kept = [path.read_text() for path in (tmp_path / "dictionaries").rglob("*.json")]
    assert any("tortoise" in text for text in kept), "no dictionary on disk knows it"
    assert "tortoise" not in {tool for _, tool in run(AUTOMATIC.replace("MOST", "20"), None, tmp_path)}


MARKS = "import json, fastio; from fastio.dicts import fingerprint; print(json.dumps(fingerprint.of('.').tools))"


def test_plugin_version_is_in_the_dictionarys_fingerprint(installed: Path, tmp_path: Path) -> None:
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


def test_plugin_files_have_valid_checksums(installed: Path, tmp_path: Path) -> None:
    assert run(CHANGING, installed, tmp_path)


ITS_WAYS = {
    "RuntimeError": "RuntimeError: it bolted",
    "MemoryError": "MemoryError: it bolted",
    "None": "it gave None, expected a fastio.transports.transport.TransportResult",
    "checksums": "checksums of",
    "EINVAL": "[Errno 22] kicking failed: Invalid argument",
}
FAVOURITE = """
import json, os, sys, torch, fastio
bandwidth = {"mule": 1e6, "posix": 1, "uring": 1, "torch": 1, "numpy": 1, "tortoise": 1}
priors = [{"where": {}, "bandwidth": {"4096": bandwidth}}]
with open("mule.json", "w") as file:
    json.dump({"schema": "fastio-dictionary/1", "contexts": [], "priors": priors}, file)
outcomes = {}
"""
STUBBORN = """
path = os.fsdecode(b"caf\\xe9.pt")  # not Unicode: a dictionary must still store a reason that quotes it
for way in WAYS:
    os.environ["MULE"] = way
    dictionary = fastio.dicts.Dictionary.load("mule.json")
    with fastio.record() as transfers:
        for count in (1000, 6 << 20):  # the larger one on a thread
            state = {"weight": torch.randn(count)}
            for _ in range(2):
                fastio.save(state, path, policy=dictionary, durable=False)
            assert fastio.verify(path).checksummed
            for _ in range(2):
                assert torch.equal(fastio.load(path, policy=dictionary)["weight"], state["weight"])
    dictionary.dump("learned.json")
    contexts = json.load(open("learned.json"))["contexts"]
    failures = [(context["op"], context["failures"]["mule"]["reason"]) for context in contexts]
    outcomes[way] = [[t.tool, t.reason, list(t.fallbacks)] for t in transfers], failures
print(json.dumps(outcomes))
"""
NAMED_TOOL = """
state = {"weight": torch.randn(1000)}
for way in WAYS:
    os.environ["MULE"], outcomes[way] = way, {}
    fastio.save(state, sys.argv[1], policy="posix")
    for doing, call in {
        "save": lambda: fastio.save({"weight": torch.ones(1000)}, sys.argv[1], policy=POLICY),
        "load": lambda: fastio.load(sys.argv[1], policy=POLICY),
    }.items():
        try:
            call()
        except fastio.FastIOError as error:
            outcomes[way][doing] = type(error).__name__, getattr(error, "errno", None), str(error)
    assert torch.equal(fastio.load(sys.argv[1], policy="posix")["weight"], state["weight"])
print(json.dumps(outcomes))
"""


def test_any_failure_of_a_plugin_falls_back_and_is_recorded_in_the_dictionary(installed: Path, tmp_path: Path) -> None:
    outcomes = run(FAVOURITE + STUBBORN.replace("WAYS", repr([*ITS_WAYS])), installed, tmp_path, MULE="")
    for way, (transfers, failures) in outcomes.items():
        assert len(transfers) == 8
        assert all(tool != "mule" for tool, _, _ in transfers)
        notes = [(reason, note) for _, reason, fallbacks in transfers for note in fallbacks if note[:5] == "mule:"]
        assert all(reason == "mule could not" and ITS_WAYS[way] in note for reason, note in notes)
        assert {op for op, _ in failures} == {"save", "load"}
        assert all(ITS_WAYS[way] in failure for _, failure in failures)
        assert len(notes) == len(failures)  # once in each context: then the tool is avoided


def test_a_failing_plugin_that_was_named_raises_an_error_with_its_name_and_the_cause(
    installed: Path, tmp_path: Path
) -> None:
    program = FAVOURITE + NAMED_TOOL.replace("WAYS", repr([*ITS_WAYS])).replace("POLICY", "'mule'")
    for way, errors in run(program, installed, tmp_path, MULE="").items():
        assert errors.keys() == {"save", "load"}
        for doing, (kind, number, said) in errors.items():
            assert ITS_WAYS[way] in said
            assert "file.pt" in said
            if way == "EINVAL":
                assert (kind, number) == ("TransferError", errno.EINVAL)
            else:
                assert (kind, number) == ("RefusedError", None)
                assert re.search(rf"no tool could {doing} .*: mule: .*policy='auto'", said)


def test_errors_that_every_tool_would_meet_are_raised_without_fallback(installed: Path, tmp_path: Path) -> None:
    failed, damaged = ("TransferError", errno.EIO), ("CorruptFileError", None)
    expected = {"EIO": failed, "OSError": failed, "CorruptFileError": damaged}
    program = FAVOURITE + NAMED_TOOL.replace("WAYS", repr([*expected])).replace("POLICY", "'mule.json'")
    for way, errors in run(program, installed, tmp_path, MULE="").items():
        assert errors.keys() == {"save", "load"}
        for kind, number, said in errors.values():
            assert (kind, number) == expected[way]
            assert "file.pt" in said


def test_a_plugin_that_raises_system_exit_is_unavailable(tmp_path: Path) -> None:
    package = tmp_path / "site" / "leaver-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: leaver\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[fastio.transports]\nleaver = leaver:Tool\n")
    (tmp_path / "site" / "leaver.py").write_text("raise SystemExit('not today')\n")
    available, reason, *_ = run(TOOLS, tmp_path / "site", tmp_path)["leaver"]
    assert not available
    assert "not today" in reason
