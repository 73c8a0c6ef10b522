"""``policy`` in all its forms: which tool is used, which dictionary learns, and what is stored; and ``explain``."""

from __future__ import annotations

import io
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import warm_python
from fastio import dicts


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for dictionaries."""
    folder = tmp_path / "dictionaries"
    monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(folder))
    dicts.forget()
    yield folder
    dicts.forget()


def test_a_named_tool_is_used_and_teaches_no_dictionary(tmp_path: Path, kept: Path) -> None:
    path = tmp_path / "a.pt"
    for tool in ("uring", "posix", "torch", "numpy", "memory"):
        assert fastio.save(torch.ones(1000), path, policy=tool).tool == tool
        with fastio.record() as transfers:
            fastio.load(path, policy=tool)
        assert (transfers[0].tool, transfers[0].reason) == (tool, "it was asked for")
    dicts.flush()
    assert not list(kept.glob("*.json"))


def test_auto_learns_from_the_first_call_and_stores_it(tmp_path: Path, kept: Path) -> None:
    path, obj = tmp_path / "a.pt", torch.ones(1 << 18)
    for _ in range(25):
        fastio.save(obj, path)
        path.read_bytes()  # always in the page cache, so all loads have one context
        fastio.load(path)
    for op in ("save", "load"):
        explanation = fastio.explain(path, op)
        # If the machine changes its speed, earlier samples are dropped: all but those of the last call.
        assert sum(entry.samples for entry in explanation.entries) >= 1
        assert explanation.entries[0].seconds
    dicts.flush()
    (file,) = kept.glob("*.json")
    contexts = json.loads(file.read_text())["contexts"]
    assert {context["op"] for context in contexts if context["sizes"]} == {"save", "load"}
    code = f"import fastio; print(sum(e.samples for e in fastio.explain({str(path)!r}).entries))"
    printed = warm_python.run(code)
    assert int(printed.stdout) >= 1  # the file keeps the last few samples of each tool


def test_policy_accepts_a_dictionary_or_its_file(tmp_path: Path, kept: Path) -> None:
    path, obj, file = tmp_path / "a.pt", torch.ones(1 << 18), tmp_path / "mine.json"
    mine = dicts.Dictionary()
    for _ in range(20):
        fastio.save(obj, path, policy=mine)
        fastio.load(path, policy=mine)
    mine.dump(file)
    learned = mine.explain(dicts.Context("save", "pt", "cpu", True, None, 0), obj.nbytes, ["uring", "posix"])
    named = [dicts.resolve(policy, "save", ["uring", "posix"]).dictionary for policy in (str(file), file)]
    assert named[0] is not None
    assert named[0] is named[1]
    for policy in (str(file), file):
        result = fastio.save(obj, path, policy=policy)
        assert result.tool in {entry.tool for entry in learned.entries} | {"numpy", "torch"}
    dicts.flush()
    assert not list(kept.glob("*.json"))  # only the caller's own dictionary has learned


def test_a_load_that_verifies_uses_torch_only_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    fastio.save(torch.ones(1 << 18), path)

    def load(policy: Any, verify: bool = True) -> tuple[str, bool]:
        with fastio.record() as transfers:
            fastio.load(path, policy=policy, verify=verify)
        return transfers[0].tool, transfers[0].verified

    fast = dicts.RDic()
    for resident in (True, False):
        for tool in [tool.name for tool in fastio.tools()] * 20:
            seconds = 1e-5 if tool == "torch" else 1e-2
            fast.observe(dicts.Context("load", "pt", "cpu", None, resident, 0), 1 << 20, tool, seconds)
    fast.learn = False  # it would look whether the others are as fast again as their starting times say
    assert load(fast, verify=False) == ("torch", False)
    assert load("torch") == ("torch", False)
    assert load(fast)[0] != "torch"
    assert load(fast)[1]


@pytest.mark.parametrize("policy", ["w", "r", "w+r"])
def test_policies_w_r_and_w_plus_r_save_and_load(tmp_path: Path, kept: Path, policy: str) -> None:
    path, obj = tmp_path / "a.pt", torch.ones(1 << 16)
    for _ in range(6):
        fastio.save(obj, path, policy=policy)
        assert torch.equal(fastio.load(path, policy=policy), obj)


def test_an_invalid_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with pytest.raises(ValueError, match="policy='teleport': expected 'auto'"):
        fastio.save(torch.ones(1), path, policy="teleport")
    with pytest.raises(fastio.DictionaryError, match="none"):
        fastio.save(torch.ones(1), path, policy=str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(fastio.DictionaryError, match="bad"):
        fastio.save(torch.ones(1), path, policy=tmp_path / "bad.json")
    with pytest.raises(fastio.ToolUnavailableError, match=r"dali.*cannot save|dali.*unavailable"):
        fastio.save(torch.ones(1), path, policy="dali")
    assert list(tmp_path.glob("*.pt")) == []


def test_an_invalid_policy_is_refused_even_if_torch_does_the_work(tmp_path: Path) -> None:
    path, legacy, stream = tmp_path / "a.pt", tmp_path / "legacy.pt", io.BytesIO()
    torch.save(torch.ones(1), path)
    torch.save(torch.ones(1), legacy, _use_new_zipfile_serialization=False)
    with open(path, "rb") as file:
        for f, arguments in ((path, {"mmap": True}), (legacy, {}), (file, {})):
            with pytest.raises(ValueError, match="policy='teleport': expected 'auto'"):
                fastio.load(f, policy="teleport", **arguments)
    new = tmp_path / "new.pt"
    for target, more in ((stream, {}), ("/dev/null", {}), (new, {"_use_new_zipfile_serialization": False})):
        with pytest.raises(ValueError, match="policy='teleport': expected 'auto'"):
            fastio.save(torch.ones(1), target, policy="teleport", **more)
        with pytest.raises(fastio.DictionaryError, match="none"):
            fastio.save(torch.ones(1), target, policy=tmp_path / "none.json", **more)
    assert stream.getvalue() == b""
    assert not new.exists()


def test_fastio_policy_variable_selects_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTIO_POLICY", "posix")
    assert fastio.save(torch.ones(1), tmp_path / "a.pt").tool == "posix"
    assert fastio.save(torch.ones(1), tmp_path / "a.pt", policy="uring").tool == "uring"
    for op in ("load", "save"):
        answer = fastio.explain(tmp_path / "a.pt", op)
        assert (answer.tool, answer.reason) == ("posix", "FASTIO_POLICY=posix")


def test_error_for_an_unusable_tool_of_the_environment_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pt"
    fastio.save(torch.ones(1), path)
    monkeypatch.setenv("FASTIO_POLICY", "spdk")  # cannot save or load files
    with pytest.raises(fastio.ToolUnavailableError, match=r"FASTIO_POLICY=spdk, and .*; .*, or unset FASTIO_POLICY"):
        fastio.load(path)
    assert fastio.explain(path).reason.startswith("FASTIO_POLICY=spdk, which is unavailable: ")
    with pytest.raises(fastio.ToolUnavailableError) as refused:
        fastio.load(path, policy="spdk")
    assert "FASTIO_POLICY" not in str(refused.value)


@pytest.mark.parametrize("text", ["abc", "", "0", "-3", "1.5", "257", "9" * 30])
def test_an_invalid_number_of_threads_is_ignored_with_a_warning(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTIO_IO_THREADS", text)
    with pytest.warns(RuntimeWarning, match=re.escape(f"FASTIO_IO_THREADS={text!r} is ignored: expected a whole")):
        assert fastio.save(torch.ones(1 << 16), tmp_path / "a.pt", policy="posix").tool == "posix"


def test_explain_accepts_any_integer_type_and_only_existing_folders(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    assert fastio.explain(numpy.int64(5), folder=tmp_path).tool == fastio.explain(5, folder=tmp_path).tool
    for wrong in (None, 1.5, True, [5]):
        with pytest.raises(TypeError, match=r"expected a path or a number of bytes"):
            fastio.explain(wrong)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    for missing in ("missing", "file"):
        with pytest.raises(FileNotFoundError, match="expected one that is there") as refused:
            fastio.explain(5, "save", folder=tmp_path / missing)
        assert refused.value.filename == str(tmp_path / missing)


def test_a_damaged_default_dictionary_is_rebuilt_with_a_warning(tmp_path: Path, kept: Path) -> None:
    path = tmp_path / "a.pt"
    for _ in range(3):
        fastio.save(torch.ones(1 << 16), path)
    dicts.flush()
    (file,) = kept.glob("*.json")
    file.write_text('{"schema": "nonsense"')
    dicts.forget()
    fastio.save(torch.ones(1 << 16), path)  # a process's first small transfer does not wait for the dictionary
    with pytest.warns(RuntimeWarning, match=file.name):
        fastio.save(torch.ones(1 << 16), path)


def test_explain_shows_reasons_and_chances(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    fastio.save(torch.ones(1 << 16), path)
    for target, op in ((path, "load"), (path, "save"), (5 << 20, "load"), (5 << 20, "save")):
        text = str(fastio.explain(target, op))
        assert "chance" in text
        assert "uring" in text
    with pytest.raises(ValueError, match="op="):
        fastio.explain(path, "send")
    with pytest.raises(FileNotFoundError):
        fastio.explain(tmp_path / "none.pt")


def test_explain_of_a_new_save_needs_a_size_and_a_folder(tmp_path: Path, kept: Path) -> None:
    obj = torch.ones(1 << 16)
    for number in range(8):
        fastio.save(obj, tmp_path / f"{number}.pt")
    missing = tmp_path / "new.pt"
    with pytest.raises(FileNotFoundError, match=r"number of bytes.*folder=.*new\.pt"):
        fastio.explain(missing, op="save")
    known = fastio.explain(obj.nbytes, op="save", folder=tmp_path)
    assert sum(entry.samples for entry in known.entries) >= 1
    assert known.entries == fastio.explain(tmp_path / "0.pt", op="save").entries
    if os.stat("/dev/shm").st_dev != tmp_path.stat().st_dev:
        assert not any(entry.samples for entry in fastio.explain(obj.nbytes, op="save", folder="/dev/shm").entries)
    with pytest.raises(TypeError, match="folder="):
        fastio.explain(tmp_path / "0.pt", op="save", folder=tmp_path)


def test_explain_names_files_that_only_torch_loads(tmp_path: Path) -> None:
    script, legacy = tmp_path / "script.pt", tmp_path / "legacy.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from TorchScript
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)), script)
    torch.save({"x": torch.ones(1000)}, legacy, _use_new_zipfile_serialization=False)
    for path, why in ((script, "TorchScript|not one that torch.save wrote"), (legacy, "legacy format")):
        explanation = fastio.explain(path)
        assert (explanation.tool, explanation.nbytes) == ("torch", path.stat().st_size)
        assert re.search(why, explanation.reason)
        assert f"torch: {explanation.reason}" in str(explanation)
        assert len(fastio.explain(path, "save").entries) > 1  # other tools can save over it
    with fastio.record() as transfers:
        fastio.load(legacy)
    assert (transfers[0].tool, transfers[0].reason) == ("torch", explanation.reason)
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(script.read_bytes()[:-10])
    with pytest.raises(fastio.CorruptFileError, match="damaged"):
        fastio.explain(damaged)


@pytest.mark.parametrize(("target", "error"), [(-5, ValueError), (True, TypeError), (2.5, TypeError)])
def test_explain_refuses_invalid_sizes(target: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        fastio.explain(target)
    assert fastio.explain(0).nbytes == 0


def test_an_empty_preset_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTIO_POLICY", "")
    assert "FASTIO_POLICY" not in fastio.save(torch.ones(4), tmp_path / "a.pt").reason
