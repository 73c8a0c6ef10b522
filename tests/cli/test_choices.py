"""``fastio explain``, ``tools``, ``dictionaries`` and ``doctor``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import disks
import fastio
from commands import run
from fastio import dicts
from fastio_command.commands import cli


@pytest.fixture
def learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a dictionary that some saves and loads have filled, and a file that is none."""
    folder = tmp_path / "dictionaries"
    monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(folder))
    dicts.forget()
    for _ in range(4):
        fastio.save(torch.ones(3_000_000), tmp_path / "x.pt", durable=False)
        fastio.load(tmp_path / "x.pt")
    dicts.flush()
    dicts.forget()
    (folder / "notes.json").write_text("{}")
    yield folder
    dicts.forget()


class TestExplain:
    def test_file_and_size(self, tmp_path: Path) -> None:
        fastio.save(torch.ones(1000), tmp_path / "x.pt")
        text = run("explain", tmp_path / "x.pt").stdout
        assert "load of 3.91 KiB (4 KB) as pt on cpu" in text
        assert "known from" in text
        found = json.loads(run("explain", "1GiB", "--op", "save", "--folder", tmp_path, "--json").stdout)
        assert (found["nbytes"], found["context"]["op"]) == (1 << 30, "save")
        assert {entry["tool"] for entry in found["entries"]} >= {"posix", "torch"}

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["12XB"], "neither a file nor a size"),
            (["none.pt"], "none.pt: there is no such file"),
            (["1GiB", "--folder", "nowhere"], "nowhere"),
            (["none.pt", "--op", "save"], "how large it will be is not known yet"),
        ],
    )
    def test_bad_input(self, arguments: list[str], said: str) -> None:
        stderr = run("explain", *arguments, status=2).stderr
        assert said in stderr
        assert stderr.count("\n") == 1

    def test_folder_beside_a_path(self) -> None:
        assert "leave the option out" in run("explain", "x.pt", "--folder", ".", status=2).stderr


def test_tools() -> None:
    found = json.loads(run("tools", "--json").stdout)
    assert [status["name"] for status in found] == [status.name for status in fastio.tools()]
    text = run("tools").stdout
    for status in fastio.tools():
        assert f"{status.name} " in text
        assert status.reason in text
        assert status.cure in text


class TestDictionaries:
    def test_show(self, learned: Path) -> None:
        text = run("dictionaries", "show").stdout
        assert f"dictionaries are kept in {learned}" in text
        assert "save of .pt on cpu, not durable: " in text
        assert "load of .pt on cpu, in the page cache: " in text
        found = json.loads(run("dictionaries", "show", "--json").stdout)
        assert found["folder"] == str(learned)
        (one,) = found["dictionaries"]
        assert (one["current"], one["problem"]) == (True, None)
        assert {context["op"] for context in one["contexts"]} == {"save", "load"}
        assert sum(context["times"] for context in one["contexts"]) >= 2

    def test_damaged_and_hostile_files(self, learned: Path) -> None:
        (path,) = learned.glob("*-*.json")
        fingerprint = json.loads(path.read_text())["fingerprint"]
        texts = (
            ("{", "not JSON"),
            (json.dumps({"schema": "fastio-dictionary/1", "fingerprint": 3}), "fingerprint"),
            (json.dumps({"schema": "fastio-dictionary/1", "fingerprint": fingerprint, "contexts": 3}), "list"),
        )
        for text, said in texts:
            path.write_text(text)
            shown = run("dictionaries", "show").stdout
            assert "cannot be used, and is learned anew" in shown
            assert said in shown
        marks = {**fingerprint, "kernel": "\x1b[2J", "gpu": "{fastio}"}
        path.write_text(json.dumps({"schema": "fastio-dictionary/1", "fingerprint": marks}))
        shown = run("dictionaries", "show").stdout
        assert r"kernel \x1b[2J; GPU {fastio}" in shown
        assert f"not used now: here is kernel {fingerprint['kernel']}, gpu " in shown

    def test_clear(self, learned: Path) -> None:
        assert "nothing was removed" in run("dictionaries", "clear", input="n\n").stdout
        stderr = run("dictionaries", "clear", input="", status=2).stderr
        assert "--yes" in stderr
        assert len(list(learned.glob("*-*.json"))) == 1
        assert "removed: 1 of 1 dictionary" in run("dictionaries", "clear", input="y\n").stdout
        assert [path.name for path in learned.glob("*.json")] == ["notes.json"]
        assert "nothing to remove" in run("dictionaries", "clear", "--yes").stdout

    def test_tune_fills_the_dictionaries_of_a_folder(self, learned: Path, tmp_path: Path) -> None:
        def times() -> int:
            found = json.loads(run("dictionaries", "show", "--json").stdout)["dictionaries"]
            return sum(context["times"] for one in found for context in one["contexts"])

        before, there = times(), sorted(os.listdir(tmp_path))
        answers = json.loads(run("dictionaries", "tune", tmp_path, "--largest", "1MiB", "--rounds", 2, "--json").stdout)
        assert [one["nbytes"] for one in answers] == [1 << 20]
        (works,) = (one["works"] for one in answers)
        assert set(works) == {"durable save", "save", "cold load", "warm load"}
        assert all(answer["tool"] in answer["seconds"] for answer in works.values())
        assert times() > before
        assert sorted(os.listdir(tmp_path)) == there
        assert "posix" in run("dictionaries", "tune", tmp_path, "--largest", "1MiB", "--rounds", 1).stdout

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["none"], "none: there is no such folder; make it first"),
            ([".", "--largest", "1KiB"], "expected 1 MiB or more"),
            ([".", "--largest", "much"], "no size"),
        ],
    )
    def test_tune_with_bad_input(
        self, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert said in run("dictionaries", "tune", *arguments, status=2).stderr
        assert list(tmp_path.iterdir()) == []

    def test_tune_where_no_dictionary_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FASTIO_POLICY", "posix")
        assert "unset it" in run("dictionaries", "tune", status=2).stderr

    def test_without_a_folder(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(tmp_path / "none"))
        assert "dictionaries are kept in" in run("dictionaries", "show").stdout
        monkeypatch.setenv("FASTIO_DICTIONARY_DIR", __file__)
        stderr = run("dictionaries", "show", status=2).stderr
        assert __file__ in stderr
        assert stderr.count("\n") == 1


class TestDoctor:
    def test_doctor_of_a_full_folder_tells_the_rest(self, tmp_path: Path) -> None:
        with disks.tmpfs(tmp_path / "small", 1) as folder:
            with contextlib.suppress(OSError):
                (folder / "all").write_bytes(bytes(2 << 20))
            found = json.loads(run("doctor", "--dir", folder, "--json").stdout)
        assert "small is full (No space left on device): free some space" in found["machine"]["direct I/O"]
        assert found["machine"]["io_uring"]

    def test_answers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FASTIO_IO_THREADS", "3")
        found = json.loads(run("doctor", "--dir", tmp_path, "--json").stdout)
        answers = found["machine"]
        assert f"torch {torch.__version__}" in answers["versions"]
        assert "FASTIO_IO_THREADS=3" in answers["settings"]
        assert answers["I/O threads"] == "3 (FASTIO_IO_THREADS)"
        assert all(answers[name] for name in ("filesystem", "direct I/O", "io_uring", "dictionaries"))
        assert {tool["name"] for tool in found["tools"]} == {status.name for status in fastio.tools()}
        assert list(tmp_path.iterdir()) == []
        text = run("doctor", "--dir", tmp_path).stdout
        assert "io_uring: " in text
        assert "uring" in text

    def test_folder_that_is_not_there(self, tmp_path: Path) -> None:
        stderr = run("doctor", "--dir", tmp_path / "none", status=2).stderr
        assert stderr == f"fastio: {tmp_path / 'none'}: there is no such folder; make it first, or name another\n"
        (tmp_path / "file").touch()
        assert "file: this is a file, expected a folder" in run("doctor", "--dir", tmp_path / "file", status=2).stderr


def test_help_lists_every_command() -> None:
    said = run("--help").stdout
    for name, command in cli.commands.items():
        assert f"  {name} " in said
        assert command.help
        assert run(name, "--help").stdout


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    """Names that stdout cannot encode are escaped."""
    fastio.save({"漢": torch.ones(1)}, tmp_path / "x.safetensors")
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-P", "-m", "fastio_command", "inspect", str(tmp_path / "x.safetensors")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert r"\u6f22 " in ended.stdout
