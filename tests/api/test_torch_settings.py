"""torch's settings, TorchScript and torch.compile affect fastio's save and load as they affect torch's."""

from __future__ import annotations

import io
import json
import pickle
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.dicts import Context

NO, YES = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
ENVIRONMENTS: list[dict[str, str]] = [{}, {NO: "1"}, {NO: "TRUE"}, {NO: "no"}, {YES: "y"}, {NO: "1", YES: "1"}]


def outcome(load: Callable[..., Any], source: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Load; returns the object or the error, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result: Any = load(source, **arguments)
        except (RuntimeError, pickle.UnpicklingError) as error:
            result = type(error), str(error)
    return result, [(warning.category, str(warning.message)) for warning in caught]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
@pytest.mark.parametrize("arguments", [{}, *({"weights_only": given} for given in (None, True, False))], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_torchs_environment_variables_control_weights_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    arguments: dict[str, Any],
    stream: bool,
) -> None:
    path = tmp_path / "a.pt"
    torch.save(Fraction(1, 3), path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def of(load: Callable[..., Any]) -> tuple[Any, ...]:
        if not stream:
            return outcome(load, path, arguments)
        with open(path, "rb") as file:
            return outcome(load, file, arguments)

    theirs = of(torch.load)
    assert of(fastio.load) == theirs
    with fastio.patch_torch():
        assert of(torch.load) == theirs


@pytest.mark.parametrize("environment", [{}, {NO: "1"}], ids=str)
def test_pickle_module_requires_weights_only_false(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    torch.save(Fraction(1, 3), tmp_path / "a.pt")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for arguments in ({}, {"weights_only": None}):
        with pytest.raises(RuntimeError, match="pickle_module"):
            fastio.load(tmp_path / "a.pt", pickle_module=pickle, **arguments)
    assert fastio.load(tmp_path / "a.pt", pickle_module=pickle, weights_only=False) == Fraction(1, 3)


def test_torchs_crc32_option_applies_only_to_the_torch_tool(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        for policy, checksummed in (("auto", True), ("posix", True), ("torch", False)):
            fastio.save(torch.ones(5000), tmp_path / "a.pt", policy=policy)
            assert fastio.verify(tmp_path / "a.pt").checksummed is checksummed
            assert torch.equal(torch.load(tmp_path / "a.pt"), torch.ones(5000))
    finally:
        torch.serialization.set_crc32_options(before)


def test_a_dictionary_cannot_choose_saves_without_checksums(tmp_path: Path) -> None:
    policy = tmp_path / "mine.json"
    sizes = {"16384": {"best": "torch"}}
    contexts = [{**Context("save", "pt", "cpu", True, None, small)._asdict(), "sizes": sizes} for small in range(4)]
    policy.write_text(json.dumps({"schema": "fastio-dictionary/1", "contexts": contexts}))
    assert fastio.save(torch.ones(5000), tmp_path / "a.pt", policy=policy).tool == "torch"
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        assert fastio.save(torch.ones(5000), tmp_path / "a.pt", policy=policy).tool != "torch"
    finally:
        torch.serialization.set_crc32_options(before)
    assert fastio.verify(tmp_path / "a.pt").checksummed


# TorchScript

scripting = pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::DeprecationWarning", "ignore::FutureWarning")


def modules() -> tuple[torch.nn.Module, torch.nn.Module]:
    """A module that saves, for which TorchScript has an operator, and one that loads, for which it has none.

    They are new classes in each call, because torch.jit caches compiled ones.
    """

    class Saves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.save(x, "scripted.pt")
            return x

    class Loads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.load("scripted.pt")
            return x

    return Saves(), Loads()


def scripted() -> tuple[str, str]:
    """The operators of a scripted save, and the error of a scripted load."""
    saves, loads = modules()
    compiled: Any = torch.jit.script(saves)
    with pytest.raises(RuntimeError) as refused:
        torch.jit.script(loads)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2))
    return str([node.kind() for node in compiled.graph.nodes()]), str(refused.value).split("\n")[1]


@scripting
def test_patch_torch_does_not_change_how_torchscript_compiles_save_and_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = scripted()
    assert "aten::save" in before[0]
    with fastio.patch_torch(), fastio.patch_torch():
        assert scripted() == before
    assert (tmp_path / "scripted.pt").exists()
    assert scripted() == before


@scripting
def test_eager_and_traced_code_saves_by_fastio_under_patch_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with fastio.patch_torch(), fastio.record() as transfers:
        modules()[0](torch.ones(2))
        traced: Any = torch.jit.trace(modules()[0], torch.ones(2))
        torch.jit.script(modules()[0])
    assert [transfer.path for transfer in transfers][:1] == ["scripted.pt"]
    assert torch.equal(torch.load("scripted.pt"), torch.ones(2))
    assert torch.equal(traced(torch.ones(2)), torch.ones(2))


# torch.compile


@pytest.mark.filterwarnings("ignore")
def test_compiled_code_saves_and_loads_by_fastio_under_patch_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile breaks its graph at torch.save and torch.load, and does not compile their callees."""
    monkeypatch.chdir(tmp_path)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.save({"y": y}, "compiled.pt")
        stream = io.BytesIO()
        torch.save(y, stream)
        stream.seek(0)
        return torch.load("compiled.pt")["y"] + torch.load(stream) + y

    compiled = torch.compile(step, backend="eager")
    with fastio.patch_torch(), fastio.record() as transfers:
        for count in (3, 4):
            assert torch.equal(compiled(torch.ones(count)), torch.full((count,), 6.0))
    assert len(transfers) == 8
    assert compiled(torch.ones(3)).sum() == 18
    assert len(transfers) == 8
