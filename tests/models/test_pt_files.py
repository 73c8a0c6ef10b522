"""``.pt`` files in safe_open and load_model: as fastio.load has their tensors, checked, and by weights_only's rules."""

from __future__ import annotations

import json
import pickle
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fastio
from fastio_command.commands import cli
from objects import DTYPES, assorted, same, same_bits, tensor_of

INDEX = "pytorch_model.bin.index.json"


def state(seed: int = 0) -> dict[str, Any]:
    tensors = {f"{seed}.{dtype}": tensor_of(dtype, 4, 6, seed=seed) for dtype in DTYPES}
    large = torch.randn(600, 512, generator=torch.Generator().manual_seed(seed))
    return tensors | {f"{seed}.scalar": torch.tensor(2.5), f"{seed}.empty": torch.empty(0, 7), f"{seed}.large": large}


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    found = torch.nn.Sequential(torch.nn.Embedding(50, 20), torch.nn.Linear(20, 50), torch.nn.BatchNorm1d(50))
    found[1].weight = found[0].weight
    return found


def save_shards(folder: Path, tensors: dict[str, Any], shards: int = 2) -> None:
    names = list(tensors)
    files = {f"pytorch_model-{n + 1:05d}-of-{shards:05d}.bin": names[n::shards] for n in range(shards)}
    for file, members in files.items():
        torch.save({name: tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in files.items() for name in members}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


@pytest.mark.parametrize("save", [fastio.save, torch.save])
def test_all_tensors_and_slices(tmp_path: Path, save: Any) -> None:
    tensors = state() | {"turned": torch.arange(12.0).view(3, 4).t(), "row": torch.arange(12.0).view(3, 4)[1]}
    tensors["expanded"] = torch.arange(3.0).expand(2, 3)
    path = tmp_path / "a.bin"
    save({"tensors": tensors, "more": [torch.ones(2), ("text", 3)], "step": 7}, path)
    names = [*(f"tensors.{name}" for name in tensors), "more.0"]
    with fastio.record() as transfers, fastio.safe_open(path) as f:
        assert f.keys() == sorted(names)
        assert f.metadata() is None
        assert all(same_bits(f.get_tensor(f"tensors.{name}"), tensor) for name, tensor in tensors.items())
        assert sum(not transfer.verified for transfer in transfers) == 1  # the row
        found = f.get_tensors()
        assert all(same_bits(found[f"tensors.{name}"], tensor) for name, tensor in tensors.items())
        assert all(same_bits(tensor, found[name]) for name, tensor in f.tensors())
        f.prefetch(["tensors.turned", ("tensors.0.large", (slice(2, 5),)), ("tensors.turned", 1)])
        for name in ("0.large", "turned", "expanded"):
            part = f.get_slice(f"tensors.{name}")
            assert part.get_shape() == list(tensors[name].shape)
            for index in (1, slice(1, 2), (slice(None), 1), (0, [0, 1]), slice(2, 5)):
                assert torch.equal(part[index], tensors[name][index])
        assert f.get_slice("tensors.0.large").get_dtype() == "F32"
        with pytest.raises(IndexError, match=r"a\.bin: 'tensors\.turned' has shape \[4, 3\]"):
            f.get_slice("tensors.turned")[9]
        with pytest.raises(fastio.TensorMissingError, match=r"alike: 'tensors\.row'"):
            f.get_tensor("tensors.rwo")


def test_parts_of_storages_are_said_to_be_unverified(tmp_path: Path) -> None:
    base, path = torch.arange(1000.0), tmp_path / "a.pt"
    fastio.save({"whole": base, "part": base[10:20]}, path)
    with fastio.record() as transfers, fastio.safe_open(path) as f:
        part, whole, rows = f.get_tensor("part"), f.get_tensor("whole"), f.get_slice("whole")[3:5]
    assert [transfer.verified for transfer in transfers] == [False, True, False]
    assert "parts of tensors" in transfers[0].fallbacks[0]
    assert [transfer.nbytes for transfer in transfers] == [40, 4000, 8]
    assert (part.sum(), whole.sum(), rows.sum()) == (base[10:20].sum(), base.sum(), 7)
    whole[10] = -1
    assert part[0] == 10


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
def test_into_a_module(tmp_path: Path, sharded: bool, atomic: bool) -> None:
    source = model(1)
    if sharded:
        save_shards(tmp_path, source.state_dict())
    else:
        torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
    with torch.device("meta"):
        empty = model(2)
    for target in (model(2), empty):
        assert fastio.load_model(target, tmp_path, strict=False, atomic=atomic) == ([], ["1.weight"] if sharded else [])
        assert same(dict(target.state_dict()), dict(source.state_dict()))
        assert target[1].weight is target[0].weight


def test_safetensors_in_a_folder_come_first(tmp_path: Path) -> None:
    torch.save({"x": torch.zeros(3)}, tmp_path / "pytorch_model.bin")
    torch.save(Namespace(), tmp_path / "training_args.bin")
    with fastio.safe_open(tmp_path) as f:
        assert f.get_tensor("x").sum() == 0
    fastio.save_file({"x": torch.ones(3)}, tmp_path / "model.safetensors")
    with fastio.safe_open(tmp_path) as f:
        assert f.get_tensor("x").sum() == 3


def test_a_checkpoint_in_the_place_of_a_state_dict(tmp_path: Path) -> None:
    path, source = tmp_path / "a.pt", torch.nn.Linear(3, 4)
    fastio.save({"net": source.state_dict(), "epoch": 3}, path)
    with pytest.raises(fastio.ModelMismatchError, match=r"are there behind 'net\.'"):
        fastio.load_model(torch.nn.Linear(3, 4), path)


@pytest.mark.parametrize("atomic", [True, False])
def test_damage(tmp_path: Path, atomic: bool) -> None:
    path, source, target = tmp_path / "a.pt", torch.nn.Linear(30, 40), torch.nn.Linear(30, 40)
    fastio.save(source.state_dict(), path)
    data = bytearray(path.read_bytes())
    data[data.index(source.weight.detach().numpy().tobytes()) + 5] ^= 4
    path.write_bytes(data)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    with pytest.raises(fastio.CorruptFileError, match=r"a\.pt: tensor 'weight': its 4.69 KiB .4,800 bytes..*CRC-32"):
        fastio.load_model(target, path, atomic=atomic)
    assert same(dict(target.state_dict()), before) == atomic
    with fastio.safe_open(path) as f:
        assert same_bits(f.get_tensor("bias"), source.bias.detach())
        with pytest.raises(fastio.CorruptFileError, match="'weight'"):
            f.get_tensors()
    data[data.index(b"bias")] ^= 1  # in the pickle
    path.write_bytes(data)
    with pytest.raises(fastio.CorruptFileError, match=r"data\.pkl"):
        fastio.safe_open(path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(fastio.CorruptFileError):
        fastio.safe_open(path)


class Runs:
    """What a hostile pickle calls."""

    called = False

    def __reduce__(self) -> Any:
        return Runs.run, ()

    @staticmethod
    def run() -> None:
        Runs.called = True


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for obj in ({"x": torch.ones(3), "y": Namespace(a=1)}, {"x": torch.ones(3), "y": Runs()}):
        torch.save(obj, path)
        with pytest.raises(pickle.UnpicklingError, match=r"a\.pt: .*weights_only=True refuses.*fastio\.load"):
            fastio.safe_open(path)
    assert not Runs.called
    fastio.save({"x": torch.eye(3).to_sparse()}, path)
    with pytest.raises(fastio.FormatError, match=r"a\.pt: ('x' is no dense tensor|it holds sparse tensors)"):
        fastio.safe_open(path)
    torch.save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, path)
    with pytest.raises(fastio.FormatError, match=r"a\.pt: two tensors have the name 'a\.b'"):
        fastio.safe_open(path)
    torch.save({"x": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(fastio.FormatError, match=r"legacy format.*fastio\.load"):
        fastio.safe_open(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)), path)
    with pytest.raises(fastio.FormatError, match=r"TorchScript.*fastio\.load"):
        fastio.safe_open(path)


def test_every_tensor_of_an_odd_dict(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.pt", assorted()
    dense = {name: t for name, t in tensors.items() if not isinstance(t, torch.Tensor) or t.layout == torch.strided}
    dense = {n: t for n, t in dense.items() if not isinstance(t, torch.Tensor) or not (t.is_conj() or t.is_neg())}
    fastio.save(dense, path)
    whole = fastio.load(path)
    with fastio.safe_open(path) as f:
        for name in f.keys():  # noqa: SIM118
            if name in whole:
                assert same_bits(f.get_tensor(name), whole[name].detach()), name


def test_inspect_lists_shards(tmp_path: Path) -> None:
    save_shards(tmp_path, {"x": torch.ones(3), "y": torch.zeros(2, 2)})
    for path in (tmp_path, tmp_path / INDEX):
        result = CliRunner().invoke(cli, ["inspect", str(path), "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert (found["format"], [tensor["name"] for tensor in found["tensors"]]) == ("pt", ["x", "y"])
        assert found["checksummed"]
    torch.save(Runs(), next(tmp_path.glob("*.bin")))
    assert CliRunner().invoke(cli, ["inspect", str(tmp_path)]).exit_code == 2


@pytest.mark.parametrize("kind", ["meta", "nested", "freed"])
def test_tensors_without_data_in_the_file_are_refused(tmp_path: Path, kind: str) -> None:
    path, freed = tmp_path / "a.pt", torch.ones(4)
    freed.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype of torch's
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    torch.save({"odd": {"meta": torch.empty(3, device="meta"), "nested": nested, "freed": freed}[kind]}, path)
    target = {"odd": torch.ones(3)}
    calls = {
        "safe_open": lambda: fastio.safe_open(path),
        "convert": lambda: fastio.convert(path, tmp_path / "b.safetensors"),
        "load_into": lambda: fastio.load_into(target, path),
    }
    for call in calls.values():
        with pytest.raises(fastio.CorruptFileError if kind == "freed" else fastio.FormatError, match=r"a\.pt"):
            call()
    assert torch.equal(target["odd"], torch.ones(3))
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


def test_a_senseless_pickle_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"weight": torch.ones(3), "bias": torch.ones(2)}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    content = path.read_bytes()
    begin = content.index(b"\x80\x02")
    errors = []
    for at in range(begin, begin + 250):
        changed = bytearray(content)
        changed[at] ^= 0x13
        path.write_bytes(changed)
        for call in (lambda: fastio.safe_open(path).close(), lambda: fastio.convert(path, path, force=True)):
            try:
                call()
            except (fastio.FastIOError, pickle.UnpicklingError) as error:
                errors.append(error)
    assert len(errors) > 50
    assert all("a.pt" in str(error) for error in errors)
