"""Files that are no checkpoints: each door names the file, what it is, what was expected and the cure."""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import json
import lzma
import pickle
import random
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fastio
from fastio_command.commands import cli

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
FILES: dict[str, tuple[bytes, str]] = {
    "pointer": (POINTER, "Git LFS pointer.*git lfs pull"),
    "page": (b"\n<!DOCTYPE html>\n<html><body>Not found</body></html>\n", "HTML page.*download"),
    "xml": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
    "json": (json.dumps({"error": "not found", "numbers": list(range(300))}).encode(), "JSON"),
    "gzip": (gzip.compress(b"it"), "gzip.*gunzip"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04" + bytes(range(100)), "zstd.*unzstd"),
    "xz": (lzma.compress(b"it"), "xz"),
    "bzip2": (bz2.compress(b"it"), "bzip2"),
    "yaml": (b"model:\n  name: gpt\n" * 100, "plain text.*model:"),
    "text": ("größer\n".encode() * 200, "plain text"),
    "short text": (b"404: Not Found", "plain text.*404: Not Found"),
    "empty": (b"", r"empty \(0 bytes\).*download"),
    "zeros": (bytes(5000), "nothing but zeros"),
    "gguf": (b"GGUF\x03\0\0\0" + bytes(100), "GGUF.*llama"),
    "onnx": (b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:" + bytes(100), "ONNX.*onnx.load"),
    "keras": (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5.*Keras.*keras.models.load_model"),
    "tensorflow": (b"\x08\x01\x12\xf3\x02\x0a\x05" + bytes(100), "TensorFlow"),
    "pickle": (pickle.dumps({"a": [1, 2, 3]}), "a pickle.*pickle.load"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3" + bytes(100), "PDF"),
    "noise": (random.Random(1).randbytes(300), "no format known here"),
}


def tar() -> bytes:
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("model.pt"))
        return buffer.getvalue()


FILES["tar"] = (tar(), "tar archive.*tar -xf")
DOORS: dict[str, Callable[[Path], Any]] = {
    "load": fastio.load,
    "load without weights_only": lambda path: fastio.load(path, weights_only=False),
    "load of a file object": lambda path: fastio.load(io.BytesIO(path.read_bytes())),
    "load_file": fastio.load_file,
    "load_model": lambda path: fastio.load_model(torch.nn.Linear(1, 1), path),
    "safe_open": lambda path: fastio.safe_open(path, "pt").__enter__(),
    "convert": lambda path: fastio.convert(path, path.parent / "new.safetensors"),
    "verify": fastio.verify,
    "seal": fastio.seal,
    "explain": fastio.explain,
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("suffix", ["pt", "safetensors", "npy"])
@pytest.mark.parametrize("kind", FILES)
def test_every_door_says_what_a_file_is(tmp_path: Path, kind: str, suffix: str) -> None:
    content, words = FILES[kind]
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(content)
    for name, door in DOORS.items():
        if kind == "noise" and (name in ("explain", "seal") or suffix == "npy"):
            continue  # nothing is known of it
        with pytest.raises(fastio.FastIOError, match=words) as raised:
            door(path)
        message = str(raised.value)
        assert name == "load of a file object" or str(path) in message, name
        assert kind == "noise" or "expected" in message, name
        assert len(message) < 600


@pytest.mark.parametrize("command", ["inspect", "verify", "convert", "diff", "seal"])
@pytest.mark.parametrize("kind", FILES)
def test_the_command_says_what_a_file_is(tmp_path: Path, kind: str, command: str) -> None:
    content, words = FILES[kind]
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    others = {"convert": [str(tmp_path / "new.safetensors")], "diff": [str(path)]}.get(command, [])
    result = CliRunner().invoke(cli, [command, str(path), *others])
    assert result.exit_code in (1, 2)
    if not (kind == "noise" and command == "seal"):
        assert fastio_line(result.output, words), result.output


@pytest.mark.parametrize("kind", ["pointer", "page", "gzip", "noise"])
def test_the_content_says_whether_a_file_is_damaged(tmp_path: Path, kind: str) -> None:
    for suffix in ("pt", "safetensors", "bin", "json", "npy"):
        if (kind, suffix) == ("noise", "npy"):
            continue
        path = tmp_path / f"model.{suffix}"
        path.write_bytes(FILES[kind][0])
        result = CliRunner().invoke(cli, ["verify", str(path)])
        assert (suffix, result.exit_code) == (suffix, 2)
        assert result.output.startswith(f"fastio: unreadable: {path}: ")


def test_a_door_says_what_it_takes(tmp_path: Path) -> None:
    other, archive, legacy = tmp_path / "x.gguf", tmp_path / "x.zip", tmp_path / "legacy.pt"
    other.write_bytes(FILES["gguf"][0])
    for door in ("load_model", "safe_open"):
        with pytest.raises(fastio.FormatError, match=r"GGUF.*expected a \.safetensors or \.pt file"):
            DOORS[door](other)
    with pytest.raises(fastio.FormatError, match=r"GGUF.*expected a file of safetensors"):
        fastio.load_file(other)
    torch.save({"w": torch.ones(2)}, legacy, _use_new_zipfile_serialization=False)
    with pytest.raises(fastio.FormatError, match=r"torch's legacy format: load it by fastio\.load"):
        fastio.load_file(legacy)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("a.txt", b"it")
    with pytest.raises(fastio.FormatError, match="a zip file of another program"):
        fastio.load_file(archive)


def fastio_line(output: str, words: str) -> bool:
    return output.startswith("fastio: ") and output.count("\n") == 1 and bool(re.search(words, output))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("kind", FILES)
def test_loads_raise_torchs_class_with_other_words(tmp_path: Path, kind: str, weights_only: bool) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(FILES[kind][0])
    with pytest.raises(Exception) as by_torch:  # noqa: PT011 whatever it is
        torch.load(path, weights_only=weights_only)
    with pytest.raises(fastio.FormatError) as raised:
        fastio.load(path, weights_only=weights_only)
    assert isinstance(raised.value, by_torch.type)
    for again in (pickle.loads(pickle.dumps(raised.value)), copy.copy(raised.value)):
        assert type(again) is type(raised.value)
        assert str(again) == str(raised.value)


def test_a_users_unpickler_keeps_its_own_error(tmp_path: Path) -> None:
    class Module:
        class Unpickler(pickle.Unpickler):
            def load(self) -> Any:
                raise ValueError("mine")

        load = staticmethod(lambda *_, **__: (_ for _ in ()).throw(ValueError("mine")))

    path = tmp_path / "model.pt"
    path.write_bytes(FILES["yaml"][0])
    with pytest.raises(ValueError, match=r"^mine$"):
        fastio.load(path, weights_only=False, pickle_module=Module)


def test_legacy_files_still_load(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert torch.equal(fastio.load(path)["w"], torch.ones(2))
    with pytest.raises(fastio.FormatError, match=r"model\.pt.*legacy format.*fastio\.load"):
        fastio.verify(path)


@pytest.mark.parametrize(
    ("names", "words"),
    [(["config.json", "model.weights.h5"], "Keras"), (["model.safetensors"], "unzip"), (["a.npy"], r"numpy\.load")],
)
def test_zip_files_of_others_are_named(tmp_path: Path, names: list[str], words: str) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"it")
    with pytest.raises(fastio.FormatError, match=rf"model\.pt: expected a file of torch\.save, found.*{words}"):
        fastio.load(path)


def test_an_index_that_is_a_page_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(FILES["page"][0])
    with pytest.raises(fastio.CorruptFileError, match=r"index.json.*HTML page.*expected an index"):
        fastio.load_model(torch.nn.Linear(1, 1), tmp_path)


def test_sound_files_are_no_foreign_ones(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(2))
    assert torch.equal(fastio.load(tmp_path / "a.npy"), torch.ones(2, dtype=torch.float64))
