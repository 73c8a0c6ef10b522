"""What errors say: what happened, where, what was found, what was expected, the cure; sizes in words and exactly."""

from __future__ import annotations

import errno
import functools
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from torch import nn

import fastio
from disks import tmpfs
from fastio.dicts import Entry
from fastio.inspect.copying import copy
from fastio.sizes import exact_size
from fastio.volumes import Volume
from fastio_command.commands import cli


def flipped(path: Path, data: bytes) -> Path:
    """Flip a bit in these bytes of a file."""
    content = bytearray(path.read_bytes())
    content[content.index(data)] ^= 1
    path.write_bytes(content)
    return path


def damaged(folder: Path) -> Path:
    path = folder / "model.pt"
    weight = torch.arange(400.0)
    fastio.save({"model": {"weight": weight, "bias": torch.ones(2)}}, path)
    return flipped(path, weight.numpy().tobytes())


def plain(folder: Path, name: str = "model.pt") -> Path:
    fastio.save({"w": torch.ones(2)}, folder / name)
    return folder / name


def nested(folder: Path) -> Path:
    fastio.save({"model": {"w": torch.ones(2)}}, folder / "nested.pt")
    return folder / "nested.pt"


def cut(folder: Path, name: str) -> Path:
    path = folder / name
    fastio.save({"w": torch.ones(2000)}, path)
    path.write_bytes(path.read_bytes()[:-5000])
    return path


def steps(folder: Path) -> fastio.Checkpointer:
    torch.manual_seed(0)
    checkpointer = fastio.Checkpointer(folder / "run")
    checkpointer.save(4, {"model": nn.Linear(2, 3), "t": torch.ones(2)})
    checkpointer.wait()
    return checkpointer


# What is called in a new folder, and what its message must have, in this order: where, what, expected or cure.
PROVOKED: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "save where no file can be made": (
        lambda folder: fastio.save({"w": torch.ones(2)}, "/proc/x.pt"),
        ["takes no new files", "save to a folder on a disk", "/proc/x.pt"],
    ),
    "save into a missing folder": (
        lambda folder: fastio.save({"w": torch.ones(2)}, folder / "no" / "x.pt"),
        ["the folder", "does not exist", "make it first", "no/x.pt"],
    ),
    "save of an int": (
        lambda folder: fastio.save({"a": 1}, folder / "x.safetensors"),
        ["x.safetensors", "'a' is an int", "not a tensor", "save it as .pt"],
    ),
    "damaged storage": (
        lambda folder: fastio.load(damaged(folder)),
        ["model.pt", "data/0", "tensor 'model.weight'", r"1.56 KiB \(1,600 bytes\)", "restore", "verify=False"],
    ),
    "damaged storage by torch": (
        lambda folder: fastio.load(damaged(folder), policy="torch"),
        ["model.pt", "data/0", "tensor 'model.weight'", "restore"],
    ),
    "damaged storage, verified": (
        lambda folder: fastio.verify(damaged(folder)),
        ["model.pt", "data/0", "tensor 'model.weight'", "restore"],
    ),
    "cut header": (
        lambda folder: fastio.load(cut(folder, "x.safetensors")),
        ["x.safetensors", "'w'", r"2.93 KiB \(3,000 bytes\) of data", "cut short", "download or copy it again"],
    ),
    "cut archive": (lambda folder: fastio.load(cut(folder, "x.pt")), ["x.pt", "the file is cut short", "copy"]),
    "restore of another model": (
        lambda folder: steps(folder).restore(into={"model": nn.Linear(2, 4)}),
        ["run/step-0000000004", r"state\['model'\], a Linear", "'weight' has shape", "nothing was restored"],
    ),
    "restore of another name": (
        lambda folder: steps(folder).restore(into={"modle": nn.Linear(2, 3)}),
        ["run/step-0000000004", r"state\['modle'\] was not saved", "'model'", "expected", "restore"],
    ),
    "restore of another shape": (
        lambda folder: steps(folder).restore(into={"t": torch.ones(3)}),
        ["run/step-0000000004", r"state\['t'\]", r"shape \(3,\)", r"shape \(2,\) was saved", "expected", "restore"],
    ),
    "save of a function in a state": (
        lambda folder: steps(folder).save(5, {"a": 1, "fn": {"deep": [torch.ones(1), lambda: 1]}}),
        ["run: step 5", r"state\['fn'\]\['deep'\]\[1\] is a function, and cannot be saved", "pickle"],
    ),
    "missing step": (lambda folder: steps(folder).restore(7), ["run", "no step 7", "there are: 4"]),
    "missing key": (
        lambda folder: fastio.load(plain(folder), keys=["v"]),
        ["model.pt", "'v'", "w"],
    ),
    "missing tensor": (
        lambda folder: fastio.safe_open(plain(folder, "x.safetensors"), "pt").get_tensor("v"),
        ["x.safetensors", "no tensor 'v'", "keys"],
    ),
    "other model": (
        lambda folder: fastio.load_model(nn.Linear(2, 3), plain(folder)),
        ["model.pt", "cannot be loaded into this Linear", "missing from the files", "Make the module", "strict=False"],
    ),
    "nested dict": (
        lambda folder: fastio.convert(nested(folder), folder / "x.safetensors"),
        ["nested.pt", "a nested dict", "expected a dict of tensors", "by key='model'"],
    ),
    "existing destination": (
        lambda folder: fastio.convert(plain(folder), plain(folder, "y.safetensors")),
        ["there is such a file already", "force=True", "y.safetensors"],
    ),
    "unknown tool": (
        lambda folder: fastio.load(plain(folder), policy="floppy"),
        ["floppy", "posix"],
    ),
    "a name that is there twice": (
        lambda folder: fastio.load(twice(folder), keys=["a.d"]),
        ["no key 'a.d' among the 3 of the file; alike: 'a.c', 'a.b'$"],
    ),
    "wrong progress": (
        lambda folder: fastio.load(plain(folder), progress=3),
        ["progress=3", "expected None, True or a function"],
    ),
    "wrong size": (
        lambda folder: fastio.convert(plain(folder), folder / "shards", max_shard_size="5 apples"),
        ["max_shard_size='5 apples'", "is no size", "expected bytes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PROVOKED)
def test_errors_in_python_say_where_what_and_the_cure(tmp_path: Path, case: str) -> None:
    provoke, words = PROVOKED[case]
    with pytest.raises(Exception) as raised:  # noqa: PT011 of many classes
        provoke(tmp_path)
    assert re.search(".*".join(words), str(raised.value), re.DOTALL | re.IGNORECASE), raised.value
    assert "--" not in str(raised.value), "the words of the command"
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)


COMMANDS: dict[str, tuple[Callable[[Path], list[object]], list[str]]] = {
    "verify a damaged file": (
        lambda folder: ["verify", damaged(folder)],
        ["damaged", "model.pt", "data/0", "tensor 'model.weight'", "restore it from a copy"],
    ),
    "diff a damaged file": (
        lambda folder: ["diff", damaged(folder), folder / "model.pt"],
        ["model.pt", "restore it from a copy"],
    ),
    "convert a nested dict": (
        lambda folder: ["convert", nested(folder), folder / "x.safetensors"],
        ["nested.pt", "a nested dict", "by --key 'model'"],
    ),
    "convert to an existing file": (
        lambda folder: ["convert", plain(folder), plain(folder, "y.safetensors")],
        ["y.safetensors", "there is such a file already", "--force"],
    ),
    "convert with a wrong size": (
        lambda folder: ["convert", plain(folder), folder / "shards", "--max-shard-size", "5 apples"],
        ["--max-shard-size '5 apples'", "is no size"],
    ),
    "convert to a wrong name": (
        lambda folder: ["convert", plain(folder), folder / "x.txt"],
        ["x.txt", "expected a name that ends in", "--max-shard-size"],
    ),
    "doctor of /proc": (lambda folder: ["doctor", "--dir", "/proc"], ["/proc", "no file can be made", "on a disk"]),
    "doctor of no folder": (lambda folder: ["doctor", "--dir", folder / "no"], ["no", "no such folder", "make it"]),
    "inspect a missing file": (lambda folder: ["inspect", folder / "no.pt"], ["no.pt", "no such file", "expected"]),
    "inspect a folder": (lambda folder: ["inspect", folder], ["expected model.safetensors", "found"]),
    "explain a missing file": (lambda folder: ["explain", "9q"], ["9q", "neither a file nor a size", "expected"]),
    "explain a page": (
        lambda folder: ["explain", page(folder)], ["HTML page", "expected a .pt", "download"],
    ),
    "inspect a cut array": (
        lambda folder: ["inspect", cut_to(folder, -1)],
        [r"cut.npy: .*needs 400 bytes, found 399 bytes: the file was cut short; download or copy it again\n"],
    ),
    "inspect a cut header": (
        lambda folder: ["inspect", cut_to(folder, 2000)],
        ["cut.npy: its header ends at byte 4096, found .*2,000 bytes.: the file was cut short; download"],
    ),
    "inspect a long number": (
        lambda folder: ["inspect", numbered(folder)],
        ["numbered.safetensors: its header is not the JSON it should be: a number is too large; download"],
    ),
    "inspect the memory": (
        lambda folder: ["inspect", "/proc/self/mem"],
        ["/proc/self/mem: read of the system's own file .name one on a disk. failed at offset 0: Input/output"],
    ),
    "seal a .pt": (lambda folder: ["seal", plain(folder)], ["model.pt", "expected a file of safetensors"]),
    "tune nowhere": (lambda folder: ["dictionaries", "tune", folder / "no"], ["no", "no such folder", "make it"]),
}  # fmt: skip


def cut_to(folder: Path, nbytes: int) -> Path:
    path = folder / "cut.npy"
    fastio.save(torch.ones(100), path)
    path.write_bytes(path.read_bytes()[:nbytes])
    return path


def numbered(folder: Path) -> Path:
    header = ('{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % ("9" * 5000)).encode()
    path = folder / "numbered.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return path


def twice(folder: Path) -> Path:
    fastio.save({"a": {"b": torch.ones(2), "c": torch.ones(2)}, "a.b": torch.ones(2)}, folder / "twice.pt")
    return folder / "twice.pt"


def page(folder: Path) -> Path:
    (folder / "model.pt").write_text("<!DOCTYPE html><html></html>")
    return folder / "model.pt"


@pytest.mark.parametrize("case", COMMANDS)
def test_errors_of_the_command_speak_of_its_options(tmp_path: Path, case: str) -> None:
    arguments, words = COMMANDS[case]
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments(tmp_path)])
    assert result.exit_code in (1, 2), result.output
    said = result.output
    assert re.search(".*".join(words), said, re.DOTALL), said
    assert not re.search(r"\b(verify|force|key|max_shard_size|strict|policy|folder)=", said), "the words of Python"


def test_a_restore_of_a_damaged_step_names_its_tensor(tmp_path: Path) -> None:
    with steps(tmp_path) as checkpointer:
        torch.manual_seed(0)
        data = nn.Linear(2, 3).weight.detach().numpy().tobytes()
        flipped(next((tmp_path / "run").glob("step-*/state.pt")), data)
        for look in (checkpointer.restore, checkpointer.verify):
            with pytest.raises(fastio.CorruptFileError, match=r"step-0000000004/state\.pt.*'model\.weight'"):
                look(4)


def test_a_full_disk_says_what_was_needed_and_what_is_free(tmp_path: Path) -> None:
    state = {"w": torch.zeros(2_000_000)}
    fastio.save(state, source := tmp_path / "source.pt")
    needed = r"needs 7\.6. MiB \(8,\d\d\d,\d\d\d bytes\), 4 MiB \(4,\d\d\d,\d\d\d bytes\) are free"
    with tmpfs(tmp_path / "small", 4) as small:
        calls: dict[str, Callable[[], Any]] = {
            needed: lambda: fastio.save(state, small / "a.pt"),
            needed + " ?": lambda: fastio.save(state, small / "a.safetensors"),
            needed + "  ?": lambda: fastio.convert(source, small / "b.safetensors"),
            needed + "   ?": lambda: fastio.save(state, small / "c.pt", policy="torch"),
            needed + "    ?": lambda: copy(str(source), str(small / "e.pt")),
            needed + "     ?": lambda: Volume.create(small / "volume", "8MB"),
            r"MiB \(\d,\d\d\d,\d\d\d bytes\) are free|0 bytes are free": lambda: fastio.save(
                state, small / "d.pt", _use_new_zipfile_serialization=False
            ),
        }
        for words, call in calls.items():
            with pytest.raises(fastio.TransferError, match=words.replace(" ?", "").strip()) as raised:
                call()
            assert raised.value.errno == errno.ENOSPC
            assert "; make room, or name a place on another disk" in str(raised.value)
            assert os.fspath(small) in str(raised.value)


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB (1,024 bytes)"),
        (1_610_612_736, "1.5 GiB (1,610,612,736 bytes)"),
    ],
)
def test_sizes_are_said_in_words_and_exactly(nbytes: int, words: str) -> None:
    assert exact_size(nbytes) == words


def explanation(path: Path, tool: str, confidence: float, **sources: str) -> str:
    """An explanation in words, of tools that are known from these sources; the first is expected to be the fastest."""
    entries = tuple(Entry(name, 1.0, 0.5, 2.0, 1.0, 9, 9, source, None) for name, source in sources.items())
    known = replace(fastio.explain(path), tool=tool, reason="why", confidence=confidence, entries=entries)
    return str(known).splitlines()[2]


def test_an_explanation_calls_no_tool_the_fastest_by_a_small_chance(tmp_path: Path) -> None:
    said = functools.partial(explanation, plain(tmp_path))
    measured = {"posix": "measured", "uring": "measured"}
    assert said("posix", 0.9, **measured) == "posix is the fastest, by a chance of 90%"
    assert said("uring", 0.9, **measured) == "posix is expected to be the fastest, by a chance of 90%"
    for tool in measured:
        words = "posix is expected to be the fastest, but only by a chance of 60%"
        assert said(tool, 0.6, **measured) == words
    one = {"posix": "measured", "uring": "prior"}
    words = "posix is expected to be the fastest, by a chance of more than 99%; not tried here yet: uring"
    assert said("posix", 0.995, **one) == words
    none = {"posix": "prior", "uring": "prior"}
    assert said("posix", 0.6, **none).endswith("only by a chance of 60%; none of them was tried here yet")
    assert said("posix", 1.0, posix="measured") == "posix is the only tool here"
    live = fastio.explain(plain(tmp_path))
    assert str(live).splitlines()[1] == f"{live.tool}: {live.reason}"


def test_a_missing_file_is_pythons_error_with_a_cure(tmp_path: Path) -> None:
    path = str(tmp_path / "no.pt")
    with pytest.raises(FileNotFoundError) as by_python:
        Path(path).read_bytes()
    for door in (fastio.load, fastio.load_file, fastio.verify, fastio.safe_open, fastio.explain):
        with pytest.raises(FileNotFoundError) as raised:
            door(path)
        error = raised.value
        assert (type(error), error.errno, error.filename) == (FileNotFoundError, errno.ENOENT, path)
        assert str(error).startswith(f"[Errno 2] {by_python.value.strerror}; expected a .pt")
        assert "check the path" in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_path_below_a_file_is_pythons_error_with_a_cure(tmp_path: Path) -> None:
    file = plain(tmp_path)
    path = str(file / "x.pt")
    model = nn.Linear(2, 3)
    doors: list[Callable[[], object]] = [
        *(functools.partial(door, path) for door in (fastio.load, fastio.load_file, fastio.verify, fastio.safe_open)),
        *(functools.partial(door, path) for door in (fastio.explain, Volume.open)),
        lambda: fastio.load_model(model, path),
        lambda: fastio.load_model(model, [path]),
        lambda: fastio.convert(path, tmp_path / "y.pt"),
        lambda: Volume.create(path, 1 << 20),
    ]
    for door in doors:
        with pytest.raises(NotADirectoryError) as raised:
            door()
        error = raised.value
        assert (type(error), error.errno, error.filename) == (NotADirectoryError, errno.ENOTDIR, path)
        assert "uses a file as a folder; expected a path of folders: check the path" in str(error)
    said = CliRunner().invoke(cli, ["verify", path]).output
    assert said.count("expected a path of folders") == 1


def test_a_folder_says_what_it_is_and_what_to_name(tmp_path: Path) -> None:
    steps(tmp_path)
    run = tmp_path / "run"
    (step,) = (one for one in run.iterdir() if one.name.startswith("step-"))
    for folder in (run, step):
        said = CliRunner().invoke(cli, ["convert", str(folder), str(tmp_path / "x.safetensors")]).output
        assert f"taken is {step / 'state.pt'}" in said
        assert "its object is a nested dict: 'model' is a dict itself" in said
        assert "convert one part by --key 'model'" in said
    for door, name in ((fastio.verify, "verify"), (fastio.seal, "seal")):
        with pytest.raises(IsADirectoryError, match=f"{name} each file in it, or all of .*`fastio {name} FOLDER`"):
            door(run)
    for load in (fastio.load, fastio.load_file):
        with pytest.raises(IsADirectoryError, match=r"fastio\.Checkpointer: name the .* step-…/state\.pt"):
            load(run)
    with pytest.raises(IsADirectoryError, match=r"name a file in it, or a number of bytes .*folder="):
        fastio.explain(run)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="found no file of safetensors: check the path, or name"):
        fastio.safe_open(tmp_path / "empty")


def test_an_index_of_shards_where_a_file_of_tensors_belongs_says_what_takes_it(tmp_path: Path) -> None:
    fastio.save_model(torch.nn.Linear(8, 8), tmp_path / "w", max_shard_size="100")
    index = tmp_path / "w" / "model.safetensors.index.json"
    for door in (fastio.verify, fastio.seal, fastio.load, fastio.load_file, fastio.explain):
        with pytest.raises(fastio.FormatError, match=r"fastio\.load_model") as raised:
            door(index)
        assert re.search("a shard|one of its shards", str(raised.value))
        assert "must be named" not in str(raised.value)
    assert fastio.load_model(torch.nn.Linear(8, 8), index) == ([], [])


def test_swapped_arguments_are_said_to_be_swapped() -> None:
    model, state = torch.nn.Linear(2, 2), {"w": torch.ones(2)}
    for door, value, first in (
        (fastio.load_model, model, "model"),
        (fastio.save_model, model, "model"),
        (fastio.load_into, state, "state"),
        (fastio.save_file, state, "tensors"),
    ):
        with pytest.raises(
            TypeError, match=rf"='w' is a str.* {door.__name__}\({first}, filename\), the {first} first"
        ):
            door("w", value)


def test_a_typo_in_a_models_folder_names_folder_and_index(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    for name in ("W", "W.index.json", "W.pt"):
        for door in (fastio.safe_open, lambda path: fastio.load_model(model, path)):
            with pytest.raises(FileNotFoundError, match=r"a model's folder, or its index: check the path") as raised:
                door(tmp_path / name)
            assert raised.value.filename == str(tmp_path / name)
        with pytest.raises(FileNotFoundError, match=r"\.npy file, a model's folder, or its index"):
            fastio.convert(tmp_path / name, tmp_path / "new.safetensors")


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("x.pt", 0.5, "the file is cut short, or is no zip file"),
        ("x.safetensors", 0.9, "the file was cut short or damaged"),
        ("x.safetensors", 0.01, "it is no file of safetensors, or was cut short"),
    ],
)
def test_the_page_of_troubles_has_the_words_of_a_cut_file(tmp_path: Path, name: str, part: float, words: str) -> None:
    path = tmp_path / name
    fastio.save({"w": torch.ones(5000)}, path)
    os.truncate(path, int(path.stat().st_size * part))
    with pytest.raises(fastio.CorruptFileError, match=words):
        fastio.load(path)
    page = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
    assert f"`{words}`" in page.read_text()


def test_a_device_is_no_empty_file() -> None:
    for door in (fastio.load, fastio.load_file, fastio.verify):
        with pytest.raises(fastio.FormatError, match=r"^/dev/null: expected a regular file, found a device: name"):
            door("/dev/null")
    with pytest.raises(EOFError):  # torch's class
        fastio.load("/dev/null")


def test_a_header_of_zero_length_is_no_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"w": torch.ones(2)}, path)
    path.write_bytes(bytes(8) + path.read_bytes()[8:])
    with pytest.raises(fastio.CorruptFileError, match=r"x\.safetensors"):
        fastio.load(path)
