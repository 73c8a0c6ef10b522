"""convert makes what the formats' own libraries read as the same tensors, bit for bit, and leaves nothing half done."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fastio
import warm_python
from fastio.files.atomic_file import AtomicFile
from fastio.formats.safetensors.dtypes import _KEYS
from fastio.inspect.seal import seal
from fastio.models.conversion import chunked_copy
from interrupting import descriptors
from objects import DTYPES, same_bits, tensor_of

INDEX = "model.safetensors.index.json"
WIDE = 2_700_001  # elements: a tensor of several small chunks, which ends in the middle of one


@pytest.fixture(params=[4 << 20, chunked_copy.CHUNK], ids=["small chunks", "chunks"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_copy, "CHUNK", request.param)


def state(dtypes: list[torch.dtype], seed: int = 0) -> dict[str, torch.Tensor]:
    """A tensor of each dtype, and of odd shapes."""
    found = {f"{index}.{str(dtype)[6:]}": tensor_of(dtype, 7, 6, seed=seed) for index, dtype in enumerate(dtypes)}
    wide = torch.randn(WIDE, generator=torch.Generator().manual_seed(seed))
    found |= {"wide": wide, "none": torch.empty(3, 0, 2), "one": torch.tensor(2.5), "last": tensor_of(torch.int16, 9)}
    return found


def equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    assert found.keys() == expected.keys()
    return all(same_bits(found[name], tensor.contiguous()) for name, tensor in expected.items())


STORED = [dtype for dtype in DTYPES if dtype in _KEYS]
ARRAYS = [getattr(torch, name) for name in ("bool", "uint8", "int64", "float16", "float64", "complex64", "complex128")]


@pytest.mark.usefixtures("chunk")
def test_a_pt_becomes_safetensors_and_a_pt_again(tmp_path: Path) -> None:
    expected = state(STORED)
    torch.save(expected, tmp_path / "a.pt")
    with fastio.record() as transfers:
        result = fastio.convert(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert result.verified
    assert (result.tensors, result.nbytes) == (len(expected), sum(tensor.nbytes for tensor in expected.values()))
    assert [(one.op, one.verified) for one in transfers] == [("load", True), ("save", True)]
    assert equal(fastio.load_file(tmp_path / "a.safetensors"), expected)
    known = {name: tensor for name, tensor in expected.items() if "float4" not in name}  # the library lacks it
    if len(known) == len(expected):
        assert equal(safetensors.torch.load_file(tmp_path / "a.safetensors"), expected)
    assert fastio.verify(tmp_path / "a.safetensors").checksummed
    fastio.save_file(expected, tmp_path / "saved.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "saved.safetensors").read_bytes()

    assert fastio.convert(tmp_path / "a.safetensors", tmp_path / "b.pt").verified
    assert equal(torch.load(tmp_path / "b.pt"), expected)
    assert fastio.verify(tmp_path / "b.pt").checksummed
    (tmp_path / "other").mkdir()
    # By name: the tool torch, which auto may choose, lays its files out as torch.save does.
    fastio.save(fastio.load_file(tmp_path / "a.safetensors"), tmp_path / "other" / "b.pt", policy="posix")
    assert (tmp_path / "b.pt").read_bytes() == (tmp_path / "other" / "b.pt").read_bytes()


def test_parameters_become_plain_tensors(tmp_path: Path) -> None:
    made = {"trained": torch.nn.Parameter(torch.ones(3)), "leaf": torch.zeros(2, requires_grad=True)}
    torch.save(made, tmp_path / "a.pt")
    fastio.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt")
    assert all(type(found[name]) is torch.Tensor and not found[name].requires_grad for name in made)
    assert all(torch.equal(found[name], tensor) for name, tensor in made.items())


def test_a_file_of_the_library_keeps_its_metadata_and_gets_checksums(tmp_path: Path) -> None:
    expected = state([torch.bfloat16])
    safetensors.torch.save_file(expected, tmp_path / "a.safetensors", metadata={"format": "pt", "licence": "mine"})
    result = fastio.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert not result.verified
    assert equal(safetensors.torch.load_file(tmp_path / "b.safetensors"), expected)
    with safetensors.safe_open(tmp_path / "b.safetensors", "pt") as file:
        assert file.metadata().keys() == {"format", "licence", "fastio.checksums"}
    assert fastio.convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors").verified
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()
    assert "'licence'" in fastio.convert(tmp_path / "b.safetensors", tmp_path / "c.pth").notes[0]


@pytest.mark.usefixtures("chunk")
def test_one_file_becomes_shards_and_one_file_again(tmp_path: Path) -> None:
    expected = state([torch.float32, torch.bfloat16, torch.int8])
    fastio.save_file(expected, tmp_path / "a.safetensors", metadata={"format": "pt", "licence": "mine"})
    folder = tmp_path / "shards"
    result = fastio.convert(tmp_path / "a.safetensors", folder, max_shard_size="300B")
    assert sorted(result.files) == sorted(str(path) for path in folder.iterdir())
    index = json.loads((folder / INDEX).read_text())
    assert index["metadata"] == {"total_size": result.nbytes, "licence": "mine"}
    assert len(set(index["weight_map"].values())) > 2
    found: dict[str, torch.Tensor] = {}
    for path in result.files:
        if not path.endswith(INDEX):
            found |= safetensors.torch.load_file(path)
    assert equal(found, expected)
    assert fastio.convert(folder, tmp_path / "b.safetensors").verified
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    again = fastio.convert(folder / INDEX, f"{tmp_path}/whole/")
    assert [os.path.basename(path) for path in again.files] == ["model.safetensors"]
    assert equal(safetensors.torch.load_file(again.files[0]), expected)


def test_shards_of_torch_become_safetensors_beside_them(tmp_path: Path) -> None:
    parts = [{"a": torch.randn(30)}, {"b.c": torch.randn(20), "d": torch.ones(3)}]
    weight_map = {}
    for number, part in enumerate(parts, 1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save(part, tmp_path / file)
        weight_map |= dict.fromkeys(part, file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    before = set(os.listdir(tmp_path))
    fastio.convert(tmp_path, tmp_path, max_shard_size=120)
    assert set(os.listdir(tmp_path)) - before == {INDEX, *(f"model-0000{n}-of-00002.safetensors" for n in (1, 2))}
    with fastio.safe_open(tmp_path) as file:
        assert equal({name: file.get_tensor(name) for name in file.keys()}, {**parts[0], **parts[1]})  # noqa: SIM118
    with pytest.raises(fastio.TensorMissingError, match="no tensor 'b'"):
        fastio.convert(tmp_path / "pytorch_model.bin.index.json", tmp_path / "x.npy", key="b")
    fastio.convert(tmp_path / "pytorch_model.bin.index.json", tmp_path / "x.npy", key="b.c")
    assert np.array_equal(np.load(tmp_path / "x.npy"), parts[1]["b.c"].numpy())


@pytest.mark.parametrize("dtype", ARRAYS, ids=str)
def test_arrays(tmp_path: Path, dtype: torch.dtype) -> None:
    for number, shape in enumerate([(7, 6, 5), (5,), (), (0, 3)]):
        tensor = tensor_of(dtype, *shape)
        path = tmp_path / f"{number}.npy"
        np.save(path, tensor.numpy().copy(order="F"))
        fastio.convert(path, path.with_suffix(".pt"))
        assert equal({"": torch.load(path.with_suffix(".pt"))}, {"": tensor})
        fastio.convert(path.with_suffix(".pt"), tmp_path / f"again{number}.npy")
        fastio.save(tensor, tmp_path / f"saved{number}.npy")
        assert (tmp_path / f"again{number}.npy").read_bytes() == (tmp_path / f"saved{number}.npy").read_bytes()
        if dtype in _KEYS:
            fastio.convert(path, path.with_suffix(".safetensors"), key="it")
            assert equal(safetensors.torch.load_file(path.with_suffix(".safetensors")), {"it": tensor})


@pytest.mark.usefixtures("chunk")
def test_views_and_ties(tmp_path: Path) -> None:
    base, square = torch.randn(1200, 1300), torch.randn(200, 200)
    views = {
        "head": square, "embed": square, "turned": base.t(), "columns": base[:, 10:900], "rows": base[3:1000],
        "some": base[500:510], "expanded": torch.randn(1).expand(30, 40), "strided": torch.arange(100)[::3],
    }  # fmt: skip
    torch.save(views, tmp_path / "a.pt")
    result = fastio.convert(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert result.verified
    assert result.tied == {"head": "embed"}
    kept = {name: tensor for name, tensor in views.items() if name != "head"}
    assert equal(safetensors.torch.load_file(tmp_path / "a.safetensors"), kept)
    with safetensors.safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata()["head"] == "embed"  # as save_model has it
    model = torch.nn.Module()
    model.head = model.embed = torch.nn.Parameter(square)
    fastio.save_model(model, tmp_path / "model.safetensors")
    fastio.convert(tmp_path / "a.pt", tmp_path / "b.pt")
    found = torch.load(tmp_path / "b.pt")
    assert list(found) == list(views)
    assert equal(found, views)
    assert found["head"] is found["embed"]
    assert found["rows"].untyped_storage().data_ptr() != found["some"].untyped_storage().data_ptr()


def test_a_tied_model_is_as_save_model_writes_it(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.embed, model.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)
    model.head.weight = model.embed.weight
    torch.save(model.state_dict(), tmp_path / "a.pt")
    fastio.convert(tmp_path / "a.pt", tmp_path / "a.safetensors")
    fastio.save_model(model, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_part_of_a_checkpoint(tmp_path: Path) -> None:
    inner = {"a": torch.ones(3), "b.c": torch.zeros(2)}
    torch.save({"model": {"net": inner, "best": inner}, "x.y": torch.ones(1), "epoch": 3}, tmp_path / "a.pt")
    for key, expected in (
        ("model.net", inner),
        ("model.best", inner),
        ("model.net.b.c", {"model.net.b.c": inner["b.c"]}),
    ):
        fastio.convert(tmp_path / "a.pt", tmp_path / "a.safetensors", key=key, force=True)
        assert equal(safetensors.torch.load_file(tmp_path / "a.safetensors"), expected)


def refusals(folder: Path) -> Iterator[tuple[str, str, dict[str, Any], type[Exception], str]]:
    torch.save({"model": {"x": torch.ones(2)}, "epoch": 3}, folder / "nested.pt")
    yield "nested.pt", "x.safetensors", {}, fastio.FormatError, "'model' is a dict itself.*key='model'"
    yield "nested.pt", "x.safetensors", {"key": "epoch"}, fastio.FormatError, "'epoch' is an int, expected a dict"
    yield "nested.pt", "x.safetensors", {"key": "modle"}, fastio.TensorMissingError, "'modle'.*'model'"
    torch.save({"x": torch.ones(2), "step": 3}, folder / "step.pt")
    yield "step.pt", "x.safetensors", {}, fastio.FormatError, "'step' is of type int"
    torch.save({3: torch.ones(2)}, folder / "number.pt")
    yield "number.pt", "x.npy", {}, fastio.FormatError, "the key 3 of type int"
    torch.save([torch.ones(2)], folder / "list.pt")
    yield "list.pt", "x.safetensors", {}, fastio.FormatError, "its object is a list"
    torch.save(torch.ones(2), folder / "one.pt")
    yield "one.pt", "x.safetensors", {}, fastio.FormatError, "without a name.*key="
    torch.save({"x": torch.ones(2, dtype=torch.bfloat16), "y": torch.ones(2).to_sparse()}, folder / "sparse.pt")
    yield "sparse.pt", "x.safetensors", {}, fastio.FormatError, "'y' is no dense tensor"
    torch.save({"x": torch.ones(2, dtype=torch.bfloat16), "y": torch.ones(2)}, folder / "two.pt")
    yield "two.pt", "x.npy", {}, fastio.FormatError, "npy holds one tensor, the source has 2 .'x', 'y'.*key="
    yield "two.pt", "x.npy", {"key": "x"}, fastio.FormatError, "npy has no place for torch.bfloat16"
    yield "two.pt", "x.npz", {}, ValueError, r"x\.npz: expected a name that ends in \.safetensors"
    yield "two.pt", "x.safetensors", {"max_shard_size": "5GB"}, ValueError, "max_shard_size= makes a folder"
    yield "two.pt", "x", {"max_shard_size": "much"}, ValueError, "max_shard_size='much'"
    yield "two.pt", "two.pt", {"force": True}, fastio.FastIOError, "this is a file of the source"
    (folder / "plain").touch()
    yield "two.pt", "plain", {"max_shard_size": 8}, FileExistsError, "expected a folder for shards"
    yield "two.pt", "one.pt", {}, FileExistsError, "there is such a file already.*force=True"
    yield "two.pt", "no/x.pt", {}, FileNotFoundError, "the folder to save into does not exist"
    yield "none.pt", "x.safetensors", {}, FileNotFoundError, r"none\.pt"
    torch.save({"x": torch.ones(2, dtype=torch.complex128)}, folder / "complex.pt")
    yield "complex.pt", "x.safetensors", {}, fastio.FormatError, "'x' has dtype torch.complex128"
    torch.save({"x": torch.ones(2)}, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    yield "legacy.pt", "x.safetensors", {}, fastio.FormatError, "legacy format"
    torch.save({"x": Path("p")}, folder / "object.pt")
    yield "object.pt", "x.safetensors", {}, Exception, "weights_only=True refuses"


def test_a_tensor_may_have_an_empty_name(tmp_path: Path) -> None:
    expected = {"": torch.arange(5000.0), "other": torch.ones(3)}
    torch.save(expected, tmp_path / "a.pt")
    fastio.convert(tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert equal(safetensors.torch.load_file(tmp_path / "a.safetensors"), expected)
    assert fastio.verify(tmp_path / "a.safetensors").checksummed
    fastio.convert(tmp_path / "a.safetensors", tmp_path / "shards", max_shard_size=16 << 10)
    with fastio.safe_open(tmp_path / "shards") as file:
        assert equal(dict(file.tensors()), expected)


def test_what_cannot_be_converted_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for source, target, options, error, match in refusals(tmp_path):
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(error, match=match):
            fastio.convert(tmp_path / source, tmp_path / target, **options)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before, source


@pytest.mark.parametrize("kind", ["pt", "view", "header", "sidecar", "shard"])
@pytest.mark.parametrize("target", ["x.safetensors", "x.pt", "x/"])
def test_a_damaged_source_is_named_and_nothing_is_left(tmp_path: Path, kind: str, target: str) -> None:
    tensors = {"a": torch.ones(100), "wide": torch.randn(WIDE), "z": torch.ones(5)}
    folder = tmp_path / "source"
    folder.mkdir()
    source = folder
    if kind in ("pt", "view"):
        source = damaged = folder / "a.pt"
        torch.save({name: tensor[1:] for name, tensor in tensors.items()} if kind == "view" else tensors, source)
    elif kind == "shard":
        fastio.convert(_saved(tmp_path / "a.safetensors", tensors), folder, max_shard_size=1000)
        damaged = folder / json.loads((folder / INDEX).read_text())["weight_map"]["wide"]
    else:
        source = damaged = folder / "a.safetensors"
        (fastio.save_file if kind == "header" else safetensors.torch.save_file)(tensors, source)
        if kind == "sidecar":
            seal(str(source))
    raw = bytearray(damaged.read_bytes())
    at = raw.rindex(tensors["wide"].numpy().tobytes()[-4000:])
    raw[at + 2000] ^= 1
    damaged.write_bytes(raw)
    (tmp_path / "x.pt").write_text("old")
    before, opened = sorted(os.listdir(tmp_path)), descriptors()
    expected = "data/1" if kind == "view" else "'wide'"
    with pytest.raises(fastio.CorruptFileError, match=expected) as caught:
        fastio.convert(source, f"{tmp_path}/{target}", force=True)
    assert caught.value.path == str(damaged)
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "x.pt").read_text() == "old"
    assert descriptors() == opened


def _saved(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    fastio.save_file(tensors, path)
    return path


def test_a_source_that_is_written_to_meanwhile_is_an_error(tmp_path: Path) -> None:
    source = _saved(tmp_path / "a.safetensors", {"a": torch.ones(100)})

    def change(done: int, total: int) -> None:
        os.utime(source, ns=(1, 1))

    with pytest.raises(fastio.CorruptFileError, match="written to while it was converted"):
        fastio.convert(source, tmp_path / "b.pt", progress=change)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_force_replaces_a_file_and_a_model(tmp_path: Path) -> None:
    one, two = {"a": torch.ones(100)}, {"b": torch.zeros(30), "c": torch.ones(70)}
    (tmp_path / "config.json").write_text("{}")
    safetensors.torch.save_file(one, tmp_path / "model.safetensors")
    seal(str(tmp_path / "model.safetensors"))
    source = tmp_path / "two.pt"
    torch.save(two, source)
    with pytest.raises(FileExistsError):
        fastio.convert(source, tmp_path / "model.safetensors")
    fastio.convert(source, tmp_path / "model.safetensors", force=True)
    assert equal(fastio.load_file(tmp_path / "model.safetensors"), two)  # the old checksums are gone
    for most, count in ((200, 2), (10_000, 1), (200, 2)):
        with pytest.raises(FileExistsError):
            fastio.convert(source, tmp_path, max_shard_size=most)
        fastio.convert(source, tmp_path, max_shard_size=most, force=True)
        held = [name for name in os.listdir(tmp_path) if "safetensors" in name]
        assert len(held) == (count if count == 1 else count + 1)
        with fastio.safe_open(tmp_path) as file:
            assert equal({name: file.get_tensor(name) for name in file.keys()}, two)  # noqa: SIM118
    with pytest.raises(fastio.FastIOError, match="a file of the source"):
        fastio.convert(tmp_path, tmp_path, max_shard_size=10_000, force=True)
    assert (tmp_path / "config.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small filesystem")
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small filesystem cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("target", ["x.safetensors", "x.pt", "x/", "x.npy"])
@pytest.mark.parametrize("reserved", [True, False])
def test_a_disk_that_fills_is_an_error_that_names_file_and_tensor(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, target: str, reserved: bool
) -> None:
    torch.save({"a": torch.ones(1_000_000), "b": torch.ones(4_000_000), "c": torch.ones(3)}, tmp_path / "a.pt")
    if not reserved:  # as on a filesystem that does not know what is left
        monkeypatch.setattr(AtomicFile, "allocate", lambda new, nbytes: os.ftruncate(new.fd, nbytes))
    key = "b" if target == "x.npy" else None
    with pytest.raises(fastio.TransferError, match="No space left on device") as caught:
        fastio.convert(tmp_path / "a.pt", f"{small_disk}/{target}", key=key, policy="posix")
    assert str(caught.value.filename).startswith(f"{small_disk}/{target}")
    # Of two threads that write, the one behind may be the one that finds the disk full.
    caught.match("reserving disk space for .* are free" if reserved else "of the tensor '[ab]' failed at offset")
    assert os.listdir(small_disk) == []


MEMORY = """
import sys, fastio, fastio.models

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

source, first, *targets = sys.argv[1:]
fastio.convert(first, first + ".safetensors")  # for late imports
open("/proc/self/clear_refs", "w").write("5")
before = status("VmHWM")
for target in targets:
    fastio.convert(source, target)
    source = target
print(status("VmHWM") - before)
"""


def test_memory_is_bounded(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "first.pt")
    fastio.save({"a": torch.zeros(90 << 20, dtype=torch.uint8), "b": torch.ones(64 << 20)}, tmp_path / "a.pt")
    command = [sys.executable, "-c", MEMORY]
    paths = [f"{tmp_path}/{name}" for name in ("a.pt", "first.pt", "b.safetensors", "c.bin", "d/")]
    said = subprocess.run([*command, *paths], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(said) < 112 << 20  # of 346 MiB: two chunks of 32 MiB, and the transports' own memory


INTERRUPTED = """
import os, sys, time
import torch
import fastio
from interrupting import Interrupts, descriptors, only_one_thread

folder = sys.argv[1]
source, target = os.path.join(folder, "a.pt"), os.path.join(folder, "x", "it.safetensors")
torch.save({"a": torch.ones(9_000_000), "b": torch.ones(1_000_000)}, source)
os.mkdir(os.path.dirname(target))
start = time.perf_counter()
fastio.convert(source, target)
expected = open(target, "rb").read()
fastio._native.wait_closed()
interrupts, before, whole = Interrupts(time.perf_counter() - start), descriptors(), 0
while interrupts.came < 4:
    os.unlink(target)
    interrupts.during(lambda: fastio.convert(source, target))
    assert os.listdir(os.path.dirname(target)) in ([], ["it.safetensors"]), os.listdir(os.path.dirname(target))
    if os.path.exists(target):
        assert open(target, "rb").read() == expected
    else:
        open(target, "wb").close()
assert only_one_thread()
fastio._native.wait_closed()
assert len(descriptors()) <= len(before), descriptors()
"""


def test_interrupts_leave_nothing_half_done(tmp_path: Path) -> None:
    ended = warm_python.run(INTERRUPTED, str(tmp_path))
    assert ended.returncode == 0, ended.stderr
