"""``fastio verify`` and ``fastio diff``: what they find, their exit status, and bad input."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fastio
from commands import run
from fastio.inspect import contents as contents_of
from fastio.inspect import differences, values
from fastio.inspect.listing import contents
from fastio_command.commands import cli

NAN, INF = float("nan"), float("inf")


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "fastio_command", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "a.pt"
    weight = torch.arange(5000.0)
    fastio.save({"w": weight, "v": weight[:10], "b": torch.ones(3)}, path)
    return path


class TestVerify:
    def test_intact_file(self, saved: Path) -> None:
        assert "records, " in run("verify", saved).stdout
        (found,) = json.loads(run("verify", saved, "--json").stdout)
        assert (found["status"], found["format"]) == ("verified", "pt")
        assert found["nbytes"] > 20_000

    def test_a_file_of_safetensors_has_tensors(self, tmp_path: Path) -> None:
        fastio.save({"w": torch.ones(3), "v": torch.ones(3)}, tmp_path / "a.safetensors")
        assert ": verified: 2 tensors, " in run("verify", tmp_path / "a.safetensors").stdout

    def test_damage_names_file_and_tensors(self, saved: Path, tmp_path: Path) -> None:
        other = tmp_path / "b.pt"
        fastio.save(torch.ones(3), other)
        flip(saved, contents(saved).tensors[0].offset + 40)
        result = run("verify", saved, other, "--json", status=1)
        first, second = json.loads(result.stdout)
        assert (first["status"], first["record"], first["tensors"]) == ("damaged", "data/0", ["w", "v"])
        assert second["status"] == "verified"
        assert result.stderr.count("\n") == 1
        assert all(word in result.stderr for word in (str(saved), "data/0", "CRC-32", "(tensors 'w', 'v')"))
        ended = process("verify", saved)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)

    def test_formats_without_checksums_say_so(self, tmp_path: Path) -> None:
        for name, thing in (("x.npy", torch.ones(3)), ("x.safetensors", {"w": torch.ones(3)})):
            fastio.save(thing, tmp_path / name, **({"checksums": False} if name == "x.safetensors" else {}))
            assert "no checksums; only its structure" in run("verify", tmp_path / name).stdout
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(torch.ones(3), tmp_path / "x.pt")
        finally:
            torch.serialization.set_crc32_options(True)
        assert "not verified: pt" in run("verify", tmp_path / "x.pt").stdout

    def test_cut_shard(self, tmp_path: Path) -> None:
        fastio.save({"a": torch.ones(100)}, tmp_path / "one.safetensors")
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"a": "one.safetensors"}}))
        run("verify", tmp_path)
        os.truncate(tmp_path / "one.safetensors", 4200)
        assert "one.safetensors" in run("verify", tmp_path, status=1).stderr


class TestDiff:
    def test_equal_across_formats(self, tmp_path: Path) -> None:
        tensors = {"w": torch.randn(3, 4), "n": torch.tensor([NAN, INF, -INF, 0.0]), "e": torch.empty(0, 2)}
        fastio.save(tensors, tmp_path / "a.pt")
        fastio.save(tensors, tmp_path / "a.safetensors")
        said = run("diff", tmp_path / "a.pt", tmp_path / "a.safetensors").output
        assert re.fullmatch(r"equal: \d+ tensors?, .*bytes.*\n", said)
        found = json.loads(run("diff", tmp_path / "a.pt", tmp_path / "a.safetensors", "--json").stdout)
        assert found["equal"]
        assert found["differences"] == []

    def test_tensors_without_names(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.arange(6.0))
        fastio.convert(tmp_path / "a.npy", tmp_path / "a.pt")
        run("diff", tmp_path / "a.npy", tmp_path / "a.pt")
        torch.save(torch.zeros(6, dtype=torch.float64), tmp_path / "b.pt")
        assert run("diff", tmp_path / "a.npy", tmp_path / "b.pt", status=1).stdout.startswith("array: 5 of 6 elements")

    def test_kinds_of_difference(self, tmp_path: Path) -> None:
        one, other = tmp_path / "a.pt", tmp_path / "b.pt"
        same = torch.arange(6.0)
        first = {"same": same, "turned": same.reshape(2, 3).t(), "shape": same, "dtype": same, "gone": same}
        second = {
            "same": same,
            "turned": same.reshape(2, 3).t(),
            "shape": same[:5],
            "dtype": same.double(),
            "new": same,
        }
        torch.save({**first, "values": torch.tensor([1.0, NAN, 4.0, NAN, INF])}, one)
        torch.save({**second, "values": torch.tensor([1.0, NAN, 5.0, 1.0, INF])}, other)
        found = {
            line["name"]: line for line in json.loads(run("diff", one, other, "--json", status=1).stdout)["differences"]
        }
        kinds = {name: line["kind"] for name, line in found.items()}
        assert kinds == {
            "shape": "shape",
            "dtype": "dtype",
            "gone": "only in the first",
            "new": "only in the second",
            "values": "values",
        }
        assert (found["values"]["differing"], found["values"]["total"], found["values"]["one_nan"]) == (2, 5, 1)
        assert (found["values"]["max_absolute"], found["values"]["max_relative"]) == (1.0, 0.2)
        text = run("diff", one, other, status=1).stdout
        assert "values: 2 of 5 elements differ, by at most 1" in text
        assert ", relatively 0.2; 1 are NaN on one side" in text
        assert "shape: shape: float32 [6], float32 [5]" in text
        assert process("diff", one, other).returncode == 1

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            ([(1 << 53) + 1], [1 << 53], (1, 1.0)),  # float64 cannot tell them apart
            ([True, False], [False, False], (1, 1.0)),
            ([1 + 1j, 2], [1 - 1j, 2], (1, 2.0)),
            ([INF, 1.0], [-INF, 1.0], (1, INF)),
            ([0.0], [-0.0], (0, 0.0)),
        ],
    )
    def test_values(self, one: Any, other: Any, expected: tuple[int, float]) -> None:
        found = values.compare(torch.tensor(one), torch.tensor(other))
        assert (found.elements, found.absolute) == expected

    @pytest.mark.parametrize(
        "dtype", [torch.uint16, torch.uint64, torch.float8_e5m2, torch.bfloat16, torch.complex32, torch.int8]
    )
    def test_every_dtype(self, dtype: torch.dtype) -> None:
        zeros = torch.zeros(8, dtype=torch.uint8)
        ones = torch.full((8,), 0x11, dtype=torch.uint8)
        one, other = zeros.view(dtype), ones.view(dtype)
        assert values.compare(one, one).elements == 0
        assert values.compare(one, other).elements == one.numel()

    @pytest.mark.parametrize(
        ("atol", "rtol", "elements"), [(0.0, 0.0, 3), (0.1, 0.0, 2), (0.0, 0.1, 2), (0.1, 0.1, 1), (9e9, 9e9, 1)]
    )
    def test_tolerances_are_those_of_allclose(self, atol: float, rtol: float, elements: int) -> None:
        one = torch.tensor([0.05, 100.0, INF, 1.0, NAN], dtype=torch.float64)
        other = torch.tensor([0.0, 101.0, 1.0, 1.0, NAN], dtype=torch.float64)
        found = values.compare(one, other, atol, rtol)
        assert found.elements == elements == int((~torch.isclose(one, other, rtol, atol, equal_nan=True)).sum())
        assert values.compare(torch.tensor([1, 5]), torch.tensor([2, 9]), atol, rtol).elements == int(
            (~torch.isclose(torch.tensor([1, 5]), torch.tensor([2, 9]), rtol, atol)).sum()
        )

    def test_last_line_says_equal_or_how_far_apart(self, tmp_path: Path) -> None:
        one, other = tmp_path / "a.pt", tmp_path / "b.pt"
        weight = torch.zeros(4, 5)
        fastio.save({"module.w": weight, "module.b": weight}, one)
        changed = weight.clone()
        changed[2, 3] = 0.5
        fastio.save({"w": changed, "b": weight}, other)
        last = run("diff", one, other, "--strip-prefix", "module.", status=1).stdout.splitlines()[-1]
        assert last == "different: 1 of 2 tensors; farthest apart: w[2, 3], by 0.5"
        same = run("diff", one, other, "--strip-prefix", "module.", "--atol", 0.5).stdout
        assert same == "equal within the tolerances: 2 tensors, 160 bytes\n"
        assert run("diff", one, one).stdout == "equal: 2 tensors, 160 bytes\n"
        assert "only in the first" in run("diff", one, other, status=1).stdout
        for pair in ((one, other), (other, one)):
            last = run("diff", *pair, status=1).stdout.splitlines()[-1]
            assert last == "different: 4 of 4 tensors; no name is on both sides: --strip-prefix module. compares them"
        found = json.loads(run("diff", one, other, "--strip-prefix", "module.", "--json", status=1).stdout)
        assert (found["equal"], found["tensors"], found["differences"][0]["where"]) == (False, [2, 2], [2, 3])
        fastio.save({"module.w": weight, "w": weight}, other)
        assert "two tensors have the name 'w'" in run("diff", one, other, "--strip-prefix", "module.", status=2).stderr

    def test_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same result however the tensors are divided, also for expanded and transposed ones."""
        monkeypatch.setattr(values, "PART", 7)
        one = torch.randn(6, 5, 4)
        other = one.clone()
        other[3, 2, 1] += 1
        for turn in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
            found = values.compare(one.permute(turn), other.permute(turn))
            assert (found.elements, found.total) == (1, 120)
            assert found.where == tuple((3, 2, 1)[dim] for dim in turn)
        assert values.compare(torch.ones(1).expand(10, 10), torch.zeros(1).expand(10, 10)).elements == 100

    def test_damaged_record_is_no_difference_but_an_error(self, saved: Path, tmp_path: Path) -> None:
        other = tmp_path / "b.pt"
        other.write_bytes(saved.read_bytes())
        flip(other, contents(other).tensors[0].offset + 40)
        result = run("diff", saved, other, status=2)
        assert str(other) in result.stderr
        assert "CRC-32" in result.stderr
        last = "incomplete: 2 of 3 tensors compared, these are equal; 1 tensor could not be read\n"
        assert result.stdout == last
        found = json.loads(run("diff", saved, other, "--json", status=2).stdout)
        assert (found["equal"], found["differences"], len(found["missing"])) == (False, [], 1)

    def test_last_line_says_what_was_compared_where_damage_left_some_out(self, tmp_path: Path) -> None:
        one, other = tmp_path / "a.pt", tmp_path / "b.pt"
        tensors = {"a": torch.zeros(4, 5), "b": torch.ones(3), "c": torch.ones(5)}
        fastio.save(tensors, one)
        fastio.save({**tensors, "a": torch.full((4, 5), 0.5)}, other)
        flip(other, next(tensor.offset for tensor in contents(other).tensors if tensor.name == "b"))
        last = run("diff", one, other, status=2).stdout.splitlines()[-1]
        assert last == (
            "incomplete: 2 of 3 tensors compared, 1 of them different; farthest apart: a[0, 0], by 0.5; 1 tensor could "
            "not be read"
        )
        last = run("diff", one, other, "--atol", 1, status=2).stdout
        assert last.startswith("incomplete: 2 of 3 tensors compared, these are equal within the tolerances; 1 tensor ")

    def test_a_tensor_that_the_disk_does_not_give_is_left_out(
        self, saved: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sound = differences.read

        def failing(tensor: contents_of.StoredTensor, checksummed: bool) -> torch.Tensor:
            if tensor.name == "w":
                raise fastio.TransferError(errno.EIO, "read", tensor.file)
            return sound(tensor, checksummed)

        monkeypatch.setattr(differences, "read", failing)
        result = run("diff", saved, saved, status=2)
        assert result.stdout.startswith("incomplete: 2 of 3 tensors compared, these are equal; 1 tensor could not")
        assert "Input/output error" in result.stderr
        found = fastio.diff(saved, saved)
        assert (found.equal, found.differences["w"].kind) == (False, "unreadable")


INTERRUPTED_IMPORT = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name.endswith(module):
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
from fastio_command import main
main()
"""


class TestBadInput:
    @pytest.mark.parametrize("command", ["inspect", "verify", "diff", "explain"])
    def test_one_line_and_status_2(self, command: str, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "text.pt").write_text("hello")
        (tmp_path / "empty.safetensors").touch()
        (tmp_path / "folder").mkdir()
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "odd.index.json").write_text("{")
        cases = (
            "none",
            "pipe",
            "text.pt",
            "empty.safetensors",
            "folder",
            "loop",
            "odd.index.json",
            "text.pt/x",
            "a\nb",
        )
        for name in cases:
            path = tmp_path / name
            result = CliRunner().invoke(cli, [command, *[str(path)] * (2 if command == "diff" else 1)])
            assert result.exit_code in (1, 2), (name, result.output)
            assert isinstance(result.exception, SystemExit)
            assert result.stderr.count("\n") == 1, (name, result.stderr)
            assert name.replace("\n", r"\n") in result.stderr
            assert result.stdout == ""

    def test_mutated_files_never_give_a_traceback(self, saved: Path, tmp_path: Path) -> None:
        draw = random.Random(30)
        fastio.save({"w": torch.ones(20), "b": torch.ones(2)}, tmp_path / "x.safetensors")
        fastio.save(torch.ones(20), tmp_path / "x.npy")
        for source in (saved, tmp_path / "x.safetensors", tmp_path / "x.npy"):
            good = source.read_bytes()
            spots = [*range(400), *range(max(len(good) - 1200, 0), len(good))]
            path = tmp_path / f"mutated{source.suffix}"
            for _ in range(60):
                data = bytearray(good)
                for _ in range(draw.choice((1, 1, 5))):
                    data[draw.choice(spots) % len(data)] = draw.randrange(256)
                path.write_bytes(data[: draw.choice((len(data), len(data), draw.randrange(len(data))))])
                for arguments in (["inspect", path], ["verify", path], ["diff", path, source]):
                    result = CliRunner().invoke(cli, list(map(str, arguments)))
                    assert isinstance(result.exception, SystemExit | None), (path, arguments)
                    assert result.exit_code in (0, 1, 2)

    def test_reader_that_leaves_early(self, saved: Path) -> None:
        command = [sys.executable, "-P", "-m", "fastio_command", "inspect", str(saved)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout
            assert child.stderr
            child.stdout.close()
            assert "Traceback" not in child.stderr.read()

    def test_ctrl_c(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr("fastio.cli.diff_command.contents", interrupt)
        assert run("diff", saved, saved, status=130).stderr == "interrupted\n"

    @pytest.mark.parametrize("module", ["core._exceptions", "fastio.cli.diff_command"])
    def test_ctrl_c_during_the_imports(self, saved: Path, module: str) -> None:
        """torch takes numpy, whose import Ctrl-C ended, for missing: its core imports this module."""
        command = [sys.executable, "-P", "-c", INTERRUPTED_IMPORT, module, "diff", str(saved), str(saved)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


def test_paths_are_named_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "key=3" / "a.fastio.pt", Path("key=3", "a.fastio.pt"), Path("fastio.load")):
        assert f": {path}: there is no such file" in run("verify", path, status=2).output
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no tensors")
        assert run("inspect", path, status=2).output.startswith(f"fastio: {path}: it is plain text")
        path.unlink()


class TestErrorsAreDocuments:
    """With ``--json`` stdout holds one document, whatever happened."""

    def test_a_damaged_tensor_does_not_hide_the_others(self, tmp_path: Path) -> None:
        one, other = tmp_path / "a.pt", tmp_path / "b.pt"
        tensors = {f"t{i}": torch.full((1000,), float(i)) for i in range(6)}
        fastio.save(tensors, one)
        fastio.save({**tensors, "t4": torch.zeros(1000)}, other)
        flip(one, contents(one).tensors[0].offset + 40)
        result = run("diff", one, other, status=2)
        assert result.stdout.startswith("t4: 1,000 of 1,000 elements differ")
        assert all(word in result.stderr for word in (str(one), "'t0'", "CRC-32", "restore"))
        found = json.loads(run("diff", one, other, "--json", status=2).stdout)
        assert not found["equal"]
        assert [difference["name"] for difference in found["differences"]] == ["t4"]
        (missing,) = found["missing"]
        assert "'t0'" in missing
        assert "CRC-32" in missing

    @pytest.mark.parametrize("subcommand", ["diff", "inspect", "convert", "explain", "doctor"])
    def test_errors(self, saved: Path, tmp_path: Path, subcommand: str) -> None:
        absent = tmp_path / "absent.pt"
        arguments = {"diff": [saved, absent], "convert": [absent, tmp_path / "c.npy"], "doctor": ["--dir", absent]}
        result = run(subcommand, *arguments.get(subcommand, [absent]), "--json", status=2)
        found = json.loads(result.stdout)["error"]
        assert found["path"] == str(absent)
        assert result.stderr == f"fastio: {found['message']}\n"

    def test_errors_without_a_file_name_it_all_the_same(self, tmp_path: Path) -> None:
        empty = tmp_path / "empty.pt"
        empty.touch()
        assert json.loads(run("inspect", empty, "--json", status=2).stdout)["error"]["path"] == str(empty)
        assert "error" in json.loads(run("explain", empty, "--folder", tmp_path, "--json", status=2).stdout)
        assert run("inspect", empty, status=2).stdout == ""


@pytest.mark.parametrize("option", ["--atol", "--rtol"])
def test_tolerances_are_numbers(saved: Path, option: str) -> None:
    for given in ("nan", "-1", "much"):
        assert f"'{option}'" in run("diff", saved, saved, option, given, status=2).output


def test_diff_in_python_says_what_the_command_says(tmp_path: Path) -> None:
    tensors = {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(3), "n": torch.tensor([NAN])}
    fastio.save(tensors, tmp_path / "a.pt")
    fastio.save_file({f"m.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "b.safetensors")
    same = fastio.diff(tmp_path / "a.pt", tmp_path / "b.safetensors", strip_prefix="m.")
    assert (same.equal, str(same), same.tensors) == (True, "equal: 3 tensors", (3, 3))
    changed = {**tensors, "w": tensors["w"].clone(), "more": torch.zeros(1)}
    changed["w"][1, 2] += 0.5
    fastio.save(changed, tmp_path / "c.pt")
    found = fastio.diff(tmp_path / "a.pt", tmp_path / "c.pt")
    told = json.loads(run("diff", tmp_path / "a.pt", tmp_path / "c.pt", "--json", status=1).stdout)
    assert (found.equal, told["equal"]) == (False, False)
    assert list(found.differences) == [one["name"] for one in told["differences"]] == ["w", "more"]
    apart = found.differences["w"].values
    assert apart is not None
    assert (apart.elements, apart.absolute, apart.where) == (1, 0.5, (1, 2))
    assert str(found) == "w: 1 of 6 values differ, by up to 0.5\nmore: only in the second: float32 [1]"
    assert fastio.diff(tmp_path / "a.pt", tmp_path / "c.pt", atol=1).differences.keys() == {"more"}


def test_diff_in_python_names_damaged_tensors(saved: Path, tmp_path: Path) -> None:
    shutil.copy(saved, tmp_path / "b.pt")
    (tensor,) = (one for one in contents(saved).tensors if one.name == "w")
    flip(saved, tensor.offset)
    found = fastio.diff(saved, tmp_path / "b.pt")
    assert not found.equal
    assert "CRC-32" in found.differences["w"].problem
    assert "w: damaged: " in str(found)
