"""``fastio-bench weights``: each library's way gives the tensors that were saved, and the command shows the works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fastio_bench.commands import cli
from fastio_bench.machine.disk_copy import read_and_write
from fastio_bench.weights import child, models, ways
from fastio_bench.weights.child import Job

NBYTES = 1  # as small as a Llama-like model gets
PAIRS = [(work, tool) for work, tools in ways.WAYS.items() for tool in tools]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[models.Model]:
    """A model of 1 MB with the names of a Llama."""
    llama = models.llama(NBYTES)
    shapes = {name: tuple(size // 16 for size in shape) for name, shape in llama.shapes.items()}
    model = models.Model("llama", "small", shapes)
    monkeypatch.setattr(models, "find", lambda name, nbytes: model)
    grad = torch.is_grad_enabled()
    yield model
    torch.set_grad_enabled(grad)


@pytest.mark.parametrize(("work", "tool"), PAIRS)
def test_every_way_gives_what_was_saved(work: str, tool: str, small: models.Model, tmp_path: Path) -> None:
    try:
        ways.ready(tool)
    except ImportError as error:
        pytest.skip(str(error))
    for folder in ("model", "saved"):
        (tmp_path / folder).mkdir()
    models.write(small, tmp_path / "model")
    told = child.run(Job(tool, work, "warm", "llama", NBYTES, str(tmp_path / "model"), str(tmp_path / "saved")))
    assert told["seconds"] > 0


def test_wrong_values_are_found(small: models.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.write(small, tmp_path)
    wrong = {small.small: torch.ones(small.shapes[small.small])}
    monkeypatch.setitem(ways.WAYS[ways.SMALL], "fastio", lambda model, folder, module: wrong)
    with pytest.raises(RuntimeError, match="fastio gave something else than was saved"):
        child.run(Job("fastio", ways.SMALL, "warm", "llama", NBYTES, str(tmp_path)))


def test_the_command_compares_in_fresh_processes(tmp_path: Path) -> None:
    options = ("--size", "1MB", "--rounds", 1, "--work", ways.SMALL, "--tool", "safetensors", "--tool", "fastio")
    arguments = ["weights", *map(str, options), "--json", "--dir", str(tmp_path)]
    told = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout)
    assert not told["failures"]
    assert [sample["tool"] for sample in told["samples"]] == ["safetensors", "fastio"]
    calls = {call["tool"]: call for call in told["findings"]["calls"]}
    assert calls.keys() == {"safetensors", "fastio"}
    assert not list(tmp_path.iterdir())


def test_the_limit_of_a_conversion_moves_all_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(bytes(5 << 20))
    took = read_and_write([str(path) for path in paths], tmp_path / "new")
    assert took.seconds > 0
    assert (tmp_path / "new").stat().st_size == 10 << 20
