"""``fastio inspect``: what it lists of each format, and that it reads no tensor bytes and runs nothing."""

from __future__ import annotations

import argparse
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fastio
from commands import run
from fastio.formats.pt.pickle_outline import outline
from fastio_command.commands import cli


def listed(path: Path) -> dict[str, Any]:
    found = json.loads(run("inspect", path, "--json").stdout)
    assert isinstance(found, dict)
    return found


def shapes(found: dict[str, Any]) -> dict[str, tuple[str, list[int]]]:
    return {tensor["name"]: (tensor["dtype"], tensor["shape"]) for tensor in found["tensors"]}


def shard(folder: Path) -> Path:
    first, second = {"a": torch.ones(2)}, {"b": torch.zeros(3, 4, dtype=torch.bfloat16)}
    fastio.save(first, folder / "model-1.safetensors", metadata={"format": "pt"})
    fastio.save(second, folder / "model-2.safetensors")
    where = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": where}))
    return index


@pytest.mark.parametrize("save", [fastio.save, torch.save])
def test_pt(save: Any, tmp_path: Path) -> None:
    weight = torch.arange(12.0).reshape(3, 4)
    state = {
        "model": {"weight": torch.nn.Parameter(weight), "row": weight[1], "turned": weight.t()},
        "small": [torch.zeros((), dtype=torch.uint16), torch.zeros(5, dtype=torch.float8_e4m3fn)],
        "empty": torch.empty(0, 3),
        "step": 3,
    }
    path = tmp_path / "model.pt"
    save(state, path)
    found = listed(path)
    assert shapes(found) == {
        "model.weight": ("float32", [3, 4]),
        "model.row": ("float32", [4]),
        "model.turned": ("float32", [4, 3]),
        "small.0": ("uint16", []),
        "small.1": ("float8_e4m3fn", [5]),
        "empty": ("float32", [0, 3]),
    }
    assert found["shared"] == [["model.weight", "model.row", "model.turned"]]
    assert found["values"] == {"step": "3"}
    assert (found["refused"], found["notes"], found["checksummed"]) == ([], [], True)
    row = next(tensor for tensor in found["tensors"] if tensor["name"] == "model.row")
    assert path.read_bytes()[row["offset"] : row["offset"] + row["nbytes"]] == weight[1].numpy().tobytes()
    text = run("inspect", path).stdout
    assert "model.row and 1 more" in text
    assert "value: step: 3" in text
    assert "model\n" in run("inspect", path, "--tree").stdout


def test_safetensors_with_metadata(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    fastio.save({"w": torch.ones(2, 3), "e": torch.empty(0)}, path, metadata={"from": "here"})
    found = listed(path)
    assert shapes(found) == {"w": ("float32", [2, 3]), "e": ("float32", [0])}
    assert found["metadata"] == {"from": "here"}
    assert found["checksummed"]
    assert "metadata: from: here" in run("inspect", path).stdout
    fastio.save({"w": torch.ones(2, 3)}, path, checksums=False)
    assert not listed(path)["checksummed"]


def test_npy(tmp_path: Path) -> None:
    fastio.save(torch.ones(2, 3, dtype=torch.int16), tmp_path / "x.npy")
    assert shapes(listed(tmp_path / "x.npy")) == {"array": ("int16", [2, 3])}


def test_sharded_folder(tmp_path: Path) -> None:
    index = shard(tmp_path)
    for path in (tmp_path, index):
        found = listed(path)
        assert shapes(found) == {"a": ("float32", [2]), "b": ("bfloat16", [3, 4])}
        assert found["metadata"] == {"total_size": "32", "format": "pt"}
        assert [Path(file).name for file in found["files"]] == ["model-1.safetensors", "model-2.safetensors"]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"a": "model-1.safetensors"}, "but the index lacks it"),
        ({"a": "model-2.safetensors", "b": "model-1.safetensors"}, "it is in model-1"),
        (
            {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"},
            "no file of it has",
        ),
        (
            {"a": "../model-1.safetensors", "b": "model-2.safetensors"},
            "expected the bare name of a file",
        ),
        ({"a": "/etc/passwd"}, "expected the bare name of a file"),
        ({"a": "model-1.safetensors", "b": "model-3.safetensors"}, "it is missing: download or copy it again"),
        ({"a": 3}, "its file is 3"),
        ([], "has no weight_map"),
    ],
)
def test_index_that_differs_from_the_shards(where: Any, said: str, tmp_path: Path) -> None:
    index = shard(tmp_path)
    if where == {"a": "model-1.safetensors"}:
        fastio.save({"a": torch.ones(2), "b": torch.ones(1)}, tmp_path / "model-1.safetensors")
    index.write_text(json.dumps({"weight_map": where}))
    stderr = run("inspect", tmp_path, status=2).stderr
    assert said in stderr
    assert stderr.count("\n") == 1


def test_two_shards_with_one_name(tmp_path: Path) -> None:
    shard(tmp_path)
    fastio.save({"a": torch.ones(2), "b": torch.ones(1)}, tmp_path / "model-2.safetensors")
    stderr = run("inspect", tmp_path, status=2).stderr
    assert "model-2.safetensors: tensor 'a': is also in" in stderr
    assert "model-1.safetensors" in stderr


def test_folder_with_one_file(tmp_path: Path) -> None:
    fastio.save({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    assert shapes(listed(tmp_path)) == {"a": ("float32", [2])}


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("open('ran', 'w').close()",)


def test_other_objects_are_named_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "trap.pt"
    torch.save({"evil": Evil(), "args": argparse.Namespace(weight=torch.ones(3), lr=0.5)}, path)
    found = listed(path)
    assert shapes(found) == {"args.weight": ("float32", [3])}
    assert {"argparse.Namespace", "__builtin__.exec"} <= set(found["refused"])
    assert "weights_only=False" in found["notes"][0]
    assert not (tmp_path / "ran").exists()
    assert "objects of" in run("inspect", path).stdout


def test_reads_no_tensor_bytes(tmp_path: Path) -> None:
    """A large file is listed though its tensors are a hole of 1 TiB, which no memory could hold."""
    path = tmp_path / "large.safetensors"
    nbytes = 1 << 40
    header = json.dumps({"w": {"dtype": "F32", "shape": [nbytes // 4], "data_offsets": [0, nbytes]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + nbytes)
    assert shapes(listed(path)) == {"w": ("float32", [nbytes // 4])}


def test_damaged_tensor_bytes_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(1000)}, path)
    tensor = listed(path)["tensors"][0]
    data = bytearray(path.read_bytes())
    data[tensor["offset"]] ^= 1
    path.write_bytes(data)
    assert shapes(listed(path)) == {"w": ("float32", [1000])}


def test_names_cannot_control_the_terminal(tmp_path: Path) -> None:
    fastio.save({"a\x1b[2J\nb\u202e[red]": torch.ones(1)}, tmp_path / "x.safetensors")
    for options in ([], ["--tree"]):
        text = run("inspect", tmp_path / "x.safetensors", *options).stdout
        assert r"a\x1b[2J\nb\u202e[red]" in text


def test_compressed_archive(tmp_path: Path) -> None:
    path, packed = tmp_path / "x.pt", tmp_path / "packed.pt"
    torch.save({"w": torch.ones(100)}, path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    found = listed(packed)
    assert found["tensors"] == []
    assert "compressed" in " ".join(found["missing"])
    assert "storages that no tensor names: 1, " in " ".join(found["notes"])
    assert "not listed: its records are compressed" in run("inspect", packed).stdout
    result = run("diff", packed, packed, status=2)
    assert result.stdout == "incomplete: no tensor was compared; others are not listed\n"
    stderr = result.stderr
    assert str(packed) in stderr
    assert "compressed" in stderr
    assert stderr.count("\n") == 1


def test_malformed_tensor_is_named_and_the_others_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"good": torch.ones(2), "bad": torch.ones(77)}, path)
    whole = path.read_bytes()
    assert whole.count(b"KM") >= 2  # BININT1 77: the number of elements of the storage, and the shape
    with zipfile.ZipFile(path) as old:
        records = {name: old.read(name) for name in old.namelist()}
    pickled = next(name for name in records if name.endswith("data.pkl"))
    before, _, after = records[pickled].rpartition(b"KM")
    records[pickled] = before + b"KN" + after  # a shape of 78 elements
    with zipfile.ZipFile(path, "w") as new:
        for name, data in records.items():
            new.writestr(name, data)
    found = listed(path)
    assert shapes(found) == {"good": ("float32", [2])}
    assert found["missing"] == [
        "'bad': a malformed tensor: its shape (78,) needs more than the 308 bytes of its storage"
    ]
    run("diff", path, path, status=2)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_outline_of_every_protocol(protocol: int) -> None:
    obj = {
        "a": [1, (2, 3.5), {4}, frozenset([5])],
        "b": b"\0\1",
        "c": {"d": None, "e": True},
        "f": argparse.Namespace(x=1),
    }
    found = outline(pickle.dumps(obj, protocol))
    assert str(list(found.globals)).count("argparse") == 1


def test_hostile_pickles_end_with_a_message(tmp_path: Path) -> None:
    deep = b"\x80\x02" + b"(" * 100_000 + b"." * 1
    nested = b"\x80\x04N" + b"\x85" * 200_000 + b"."  # a tuple in a tuple in a tuple ...
    laughs = b"\x80\x02" + b"N\x85" + b"2\x86" * 200 + b"."  # 2^200 leaves, by reference
    huge = b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"."  # a bytearray of 1 TiB
    for number, data in enumerate((deep, nested, laughs, huge, b"", b"\x80\x02e.", b"\x80\x02h\x05.")):
        path = tmp_path / f"{number}.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x/data.pkl", data)
            archive.writestr("x/version", "3\n")
        ended = CliRunner().invoke(cli, ["inspect", str(path)])
        assert ended.exit_code in (0, 2), (number, ended.output)
        assert isinstance(ended.exception, SystemExit | None)
        assert ended.stderr.count("\n") == (1 if ended.exit_code else 0)
