"""load_model does what safetensors' own does, straight into modules, and says what a failure left in them."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import fastio
from fastio.models import in_place, loading
from fastio.models.part_batches import Batch
from fastio.models.part_reads import read_batch
from objects import same


class Model(nn.Module):
    """Parameters, buffers, tied weights, an alias of a whole submodule, and a scalar."""

    def __init__(self, seed: int = 0, width: int = 32, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(50, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)) for _ in range(3))
        self.frozen = nn.Parameter(torch.randn(7), requires_grad=False)
        self.register_buffer("scale", torch.randn(()))
        self.register_buffer("steps", torch.randint(0, 100, (5,)))
        self.register_buffer("nothing", torch.empty(0, 3))
        self.head = nn.Linear(width, 50, bias=False)
        self.again = self.layers[1][0]
        if tied:
            self.head.weight = self.embedding.weight


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    safetensors.torch.save_model(Model(1), str(tmp_path / "model.safetensors"))
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("atomic", [True, False])
def test_values_are_the_librarys_in_the_memory_that_was_there(saved: Path, atomic: bool) -> None:
    model, library = Model(2), Model(2)
    places = {name: (id(tensor), tensor.data_ptr()) for name, tensor in model.state_dict(keep_vars=True).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert fastio.load_model(model, saved, atomic=atomic) == ([], [])
    assert safetensors.torch.load_model(library, saved) == (set(), [])
    assert equal(values(model), values(library))
    assert equal(values(model), values(Model(1)))
    assert {n: (id(t), t.data_ptr()) for n, t in model.state_dict(keep_vars=True).items()} == places
    assert [id(one) for one in optimizer.param_groups[0]["params"]] == [id(one) for one in model.parameters()]


def test_on_the_meta_device_tensors_are_made_and_ties_kept(saved: Path) -> None:
    with torch.device("meta"):
        model = Model(2)
    assert fastio.load_model(model, saved, device="cpu") == ([], [])
    assert equal(values(model), values(Model(1)))
    assert model.head.weight is model.embedding.weight
    assert model.again.weight is model.layers[1][0].weight
    assert isinstance(model.frozen, nn.Parameter)
    assert not model.frozen.requires_grad
    assert model.embedding.weight.requires_grad
    assert not any(tensor.is_meta for tensor in model.state_dict().values())
    model.embedding.weight.sum().backward()


class Rotary(nn.Module):
    """A buffer that no file has, as of many models of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("inv_freq", torch.ones(2), persistent=False)
        self.register_buffer("none", None, persistent=False)


def test_buffers_of_no_file_that_stay_on_the_meta_device_are_named_in_one_warning(tmp_path: Path) -> None:
    made = nn.ModuleList([Rotary(), Rotary()])
    fastio.save_model(made, tmp_path / "a.safetensors")
    assert fastio.load_model(made, tmp_path / "a.safetensors") == ([], [])  # no warning
    with torch.device("meta"):
        model = nn.ModuleList([Rotary(), Rotary()])
    with pytest.warns(RuntimeWarning, match=r"'0\.inv_freq', '1\.inv_freq'; compute them after the load") as warned:
        assert fastio.load_model(model, tmp_path / "a.safetensors") == ([], [])
    assert [one.filename for one in warned] == [__file__]
    assert model[0].inv_freq.is_meta
    assert not model[0].weight.is_meta


def test_tensors_that_stay_without_memory_are_named_in_one_warning(tmp_path: Path) -> None:
    fastio.save_file({"0.weight": torch.ones(3, 2)}, tmp_path / "a.safetensors")
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    model.append(nn.LazyLinear(2, bias=False))
    lacking = ["0.bias", "1.bias", "1.weight", "2.weight"]
    said = r"without memory: '0\.bias', '1\.weight', '1\.bias', '2\.weight'; load a file that has them"
    with pytest.warns(RuntimeWarning, match=said) as warned:
        assert fastio.load_model(model, tmp_path / "a.safetensors", strict=False) == (lacking, [])
    assert [one.filename for one in warned] == [__file__]
    with_memory = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    assert fastio.load_model(with_memory, tmp_path / "a.safetensors", strict=False) == (lacking[:3], [])  # no warning


def test_a_hook_that_computes_such_buffers_needs_no_warning(tmp_path: Path) -> None:
    fastio.save_model(Rotary(), tmp_path / "a.safetensors")
    with torch.device("meta"):
        model = Rotary()

    def compute(module: nn.Module, keys: object) -> None:
        module.inv_freq = torch.ones(2)

    model.register_load_state_dict_post_hook(compute)
    assert fastio.load_model(model, tmp_path / "a.safetensors") == ([], [])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_part_of_a_model_of_which_nothing_is_loaded_is_told_what_loads_it(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), "norm": nn.LayerNorm(4)})
    fastio.save_model(saved, tmp_path / "w", max_shard_size="100")
    monkeypatch.chdir(tmp_path)
    with torch.device(device):
        module = nn.Linear(4, 4)
    with pytest.warns(RuntimeWarning, match=r"expected: 'bias', 'weight'; the files have: 'layers\.0\.bias'") as warned:
        missing, unexpected = fastio.load_model(module, "w", strict=False)
    assert (missing, unexpected) == (["bias", "weight"], sorted(saved.state_dict()))
    assert [one.filename for one in warned] == [__file__]
    said = str(warned[0].message)
    if device == "meta":
        assert "module.to_empty(device='cpu')" in said
        module.to_empty(device="cpu")
    (cure,) = re.findall(r"fastio\.load_into\(.*strict=False\)", said)
    assert eval(cure)[0] == []
    assert torch.equal(module.weight, saved["layers"][0].weight)


def test_a_wrapped_module_and_another_model_are_told_when_nothing_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fastio.save_model(nn.Linear(4, 4), path)
    with pytest.warns(RuntimeWarning, match="'bias', 'weight'; fill what is behind 'module.' by fastio.load_into"):
        fastio.load_model(nn.ModuleDict({"module": nn.Linear(4, 4)}), path, strict=False)
    with pytest.warns(RuntimeWarning, match="expected: 'wieght'; the files have: 'weight'; name the files"):
        fastio.load_into({"wieght": torch.ones(4, 4)}, path, strict=False)
    fastio.save_file({}, path)
    with pytest.warns(RuntimeWarning, match="the files have no tensors"):
        fastio.load_into({"weight": torch.ones(4, 4)}, path, strict=False)
    assert fastio.load_model(nn.ReLU(), path, strict=False) == ([], [])


def test_a_submodule_with_two_names_stays_one_on_the_meta_device(tmp_path: Path) -> None:
    def made() -> nn.Module:
        model = nn.Module()
        model.one = nn.BatchNorm1d(3)
        model.other = model.one
        return model

    expected = made()
    expected.one.running_mean.fill_(3)
    fastio.save_model(expected, tmp_path / "a.safetensors")
    with torch.device("meta"):
        model = made()
    assert fastio.load_model(model, tmp_path / "a.safetensors") == ([], [])
    assert equal(values(model), values(expected))
    assert model.other.running_mean is model.one.running_mean
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


def test_a_module_that_is_partly_on_the_meta_device(saved: Path) -> None:
    model = Model(2)
    model.layers[0].to("meta")
    place = model.embedding.weight.data_ptr()
    assert fastio.load_model(model, saved) == ([], [])
    assert equal(values(model), values(Model(1)))
    assert model.embedding.weight.data_ptr() == place


@pytest.mark.parametrize("kept", ["embedding.weight", "head.weight"])
def test_either_name_of_tied_weights_is_enough(tmp_path: Path, kept: str) -> None:
    state = Model(1, tied=False).state_dict()
    del state[{"embedding.weight": "head.weight", "head.weight": "embedding.weight"}[kept]]
    state = {name: tensor.clone() for name, tensor in state.items() if not name.startswith("again.")}
    fastio.save_file(state, tmp_path / "a")
    model, library = Model(2), Model(2)
    assert fastio.load_model(model, tmp_path / "a") == ([], [])
    safetensors.torch.load_model(library, tmp_path / "a")
    assert equal(values(model), values(library))
    assert torch.equal(model.head.weight, state[kept])


def test_missing_and_unexpected_names_are_the_librarys(tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in Model(1).state_dict().items() if not name.startswith("again.")}
    del state["frozen"], state["head.weight"]
    fastio.save_file(state | {"more": torch.ones(2), "and": torch.ones(1)}, tmp_path / "a")
    model, library = Model(2), Model(2)
    with pytest.raises(RuntimeError, match="frozen"):
        safetensors.torch.load_model(library, tmp_path / "a")
    before = values(model)
    with pytest.raises(
        fastio.ModelMismatchError, match=r"/a cannot be (.|\n)*'frozen'(.|\n)*'and', 'more'(.|\n)*strict=False"
    ):
        fastio.load_model(model, tmp_path / "a")
    assert equal(values(model), before)
    theirs = safetensors.torch.load_model(library, tmp_path / "a", strict=False)
    ours = fastio.load_model(model, tmp_path / "a", strict=False)
    assert ours == (sorted(theirs[0]), sorted(theirs[1])) == (["frozen"], ["and", "more"])
    assert equal(values(model), values(library))


def test_a_difference_names_the_folder_or_the_index_that_was_given(tmp_path: Path) -> None:
    fastio.save_model(Model(1), tmp_path / "w", max_shard_size="2KB")
    for where in (tmp_path / "w", tmp_path / "w" / "model.safetensors.index.json"):
        with pytest.raises(fastio.ModelMismatchError) as raised:
            fastio.load_model(nn.Linear(1, 1), where)
        assert str(raised.value).startswith(f"{where} cannot be loaded into this Linear:")


@pytest.mark.parametrize("atomic", [True, False])
def test_a_pt_of_a_tied_models_state_dict_fits_it(tmp_path: Path, atomic: bool) -> None:
    torch.save(Model(1).state_dict(), tmp_path / "a.pt")
    model = Model(2)
    assert fastio.load_model(model, tmp_path / "a.pt", atomic=atomic) == ([], [])
    assert equal(values(model), values(Model(1)))
    with torch.device("meta"):
        model = Model(2)
    assert fastio.load_model(model, tmp_path / "a.pt", atomic=atomic) == ([], [])
    assert equal(values(model), values(Model(1)))
    assert model.head.weight is model.embedding.weight
    state = Model(2).state_dict()
    assert fastio.load_into(state, tmp_path / "a.pt", atomic=atomic) == ([], [])
    assert equal(state, values(Model(1)))

    torch.save(Model(1, tied=False).state_dict(), tmp_path / "apart.pt")
    with pytest.raises(fastio.ModelMismatchError, match=r"further names of tied tensors: 'head\.weight'"):
        fastio.load_model(Model(2), tmp_path / "apart.pt", atomic=atomic)


def test_both_names_of_tied_weights_in_the_file_are_one_too_many(tmp_path: Path) -> None:
    fastio.save_file({name: tensor.clone() for name, tensor in Model(1).state_dict().items()}, tmp_path / "a")
    with pytest.raises(RuntimeError, match=r"head\.weight"):
        safetensors.torch.load_model(Model(2), tmp_path / "a")
    with pytest.raises(fastio.ModelMismatchError, match=r"head\.weight"):
        fastio.load_model(Model(2), tmp_path / "a")
    missing, unexpected = fastio.load_model(Model(2), tmp_path / "a", strict=False)
    assert missing == []
    assert "head.weight" in unexpected


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("atomic", [True, False])
def test_shapes_and_dtypes_are_compared_before_anything_is_read(saved: Path, strict: bool, atomic: bool) -> None:
    for model, match in (
        (Model(2, width=16), r"model.safetensors has shape \[32\], the module's has \[16\](.|\n)*and \d+ more"),
        (
            Model(2).half(),
            r"is torch.float16: load with dtype=torch.float16, which converts, or call model.to\(torch.float32\)",
        ),
    ):
        before = values(model)
        with fastio.record() as transfers, pytest.raises(fastio.ModelMismatchError, match=match):
            fastio.load_model(model, saved, strict=strict, atomic=atomic)
        assert transfers == []
        assert equal(values(model), before)


def test_dtype_advice_is_only_what_helps(tmp_path: Path) -> None:
    class Mixed(torch.nn.Module):
        def __init__(self, second: torch.dtype, count: torch.dtype) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).to(second)
            self.register_buffer("count", torch.zeros(3, dtype=count))

    fastio.save_model(Mixed(torch.float16, torch.int64), tmp_path / "a")
    with pytest.raises(fastio.ModelMismatchError) as caught:
        fastio.load_model(Mixed(torch.bfloat16, torch.int32), tmp_path / "a")
    said = str(caught.value)
    assert "the module's is torch.int32: give it a tensor of torch.int64" in said
    assert "the module's is torch.bfloat16: convert the module's to torch.float16 first" in said
    assert "dtype=" not in said
    assert "model.to" not in said
    assert said.endswith("Nothing was loaded.")


def fail_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the file short before the ``number``-th tensor is read into new memory."""
    seen = []

    def failing(batch: Batch, *arguments: Any) -> list[torch.Tensor]:
        seen.append(batch)
        if len(seen) == number:
            os.truncate(batch.parts[0].file.path, batch.parts[0].offset + 1)
        return read_batch(batch, *arguments)

    monkeypatch.setattr("fastio.models.new_tensors.read_batch", failing)
    monkeypatch.setattr(
        "fastio.models.new_tensors.batches", lambda parts, *_: [Batch([p], [0]) for p in parts if p.nbytes]
    )


@pytest.mark.parametrize("number", [1, 5, 15])
def test_a_read_that_fails_leaves_the_module_as_it_was_if_it_is_asked_to(
    saved: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(number, monkeypatch)
    model = Model(2)
    before = values(model)
    with pytest.raises(fastio.CorruptFileError, match=r"model\.safetensors") as failed:
        fastio.load_model(model, saved, atomic=True)
    assert "partly filled" not in str(failed.value)
    assert equal(values(model), before)


@pytest.mark.parametrize("number", [1, 5, 15])
def test_tensors_on_the_meta_device_stay_there_if_a_read_fails(
    saved: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(number, monkeypatch)
    with torch.device("meta"):
        model = Model(2)
    model.frozen = nn.Parameter(torch.full((7,), 5.0))
    with pytest.raises(fastio.CorruptFileError) as failed:
        fastio.load_model(model, saved)
    assert "partly filled" not in str(failed.value)
    assert all(tensor.is_meta for name, tensor in model.state_dict().items() if name != "frozen")
    assert torch.equal(model.frozen, torch.full((7,), 5.0))


def shards_of_layers(folder: Path) -> nn.Sequential:
    """Save six linear layers into three shards, two each; return them."""
    torch.manual_seed(1)
    expected = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(6)))
    fastio.save_model(expected, folder, max_shard_size=2 * 16 * 16 * 4)
    assert len(list(folder.glob("*.safetensors"))) == 3
    return expected


def sevens() -> nn.Sequential:
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(6)))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 7)
    return model


@pytest.mark.parametrize("strict", [True, False])
def test_damage_in_the_last_shard_is_an_error_that_names_what_is_filled(tmp_path: Path, strict: bool) -> None:
    expected = shards_of_layers(tmp_path)
    path = sorted(tmp_path.glob("*.safetensors"))[-1]
    content = bytearray(path.read_bytes())
    content[content.index(expected[5].weight.detach().numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    model = sevens()
    with pytest.raises(fastio.ChecksumError, match=r"00003-of-00003.*'5\.weight'.*CRC-32") as failed:
        fastio.load_model(model, tmp_path, strict=strict)
    said = (
        "; this module is partly filled (loaded: '0.weight', '1.weight', '2.weight', '3.weight', '4.weight'; "
        "damaged, or read in part: '5.weight'): load it again"
    )
    assert said in str(failed.value)
    assert said in str(pickle.loads(pickle.dumps(failed.value)))
    assert failed.value.record == "5.weight"
    assert all(torch.equal(model[number].weight, expected[number].weight) for number in range(5))
    fastio.load_model(model, tmp_path, verify=False)
    assert torch.equal(model[0].weight, expected[0].weight)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_shard_that_is_cut_short_while_it_is_read_is_an_error_that_names_what_is_filled(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shards_of_layers(tmp_path)
    read, seen = in_place.read_into, []

    def failing(file: Any, extents: Any, *arguments: Any, **keywords: Any) -> None:
        seen.append(file)
        if len(seen) == number:
            os.truncate(file.path, extents[0].offset + 1)
        read(file, extents, *arguments, **keywords)

    monkeypatch.setattr("fastio.models.in_place.read_into", failing)
    model = sevens()
    with pytest.raises(fastio.CorruptFileError, match=f"0000{number}-of-00003.*partly filled") as failed:
        fastio.load_model(model, tmp_path)
    names = [f"'{layer}.weight'" for layer in range(6)]
    good, bad, old = names[: 2 * number - 2], names[2 * number - 2 : 2 * number], names[2 * number :]
    kinds = {"loaded": good, "damaged, or read in part": bad, "as they were": old}
    assert "; ".join(f"{what}: {', '.join(some)}" for what, some in kinds.items() if some) in str(failed.value)
    assert all(torch.equal(model[layer].weight, expected[layer].weight) for layer in range(2 * number - 2))
    assert all(bool((model[layer].weight == 7).all()) for layer in range(2 * number, 6))


def test_an_interrupt_leaves_the_files_that_follow_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(1024, 2048, bias=False) for _ in range(3)))  # 8 MiB each
    fastio.save_model(model, tmp_path, max_shard_size="9MiB")
    read, seen = in_place.read_into, []

    def interrupted(file: Any, *arguments: Any, **keywords: Any) -> None:
        seen.append(file)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        deadline = time.monotonic() + 300
        while not keywords["control"].cancelled and time.monotonic() < deadline:
            time.sleep(0.001)
        read(file, *arguments, **keywords)

    monkeypatch.setattr("fastio.models.in_place.read_into", interrupted)
    for layer in model:
        nn.init.constant_(layer.weight, 7)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        fastio.load_model(model, tmp_path)
    assert len(seen) == 1
    assert all(bool((model[number].weight == 7).all()) for number in (1, 2))


def test_an_error_of_the_disk_keeps_its_class_and_errno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards_of_layers(tmp_path)

    def failing(*arguments: Any, **keywords: Any) -> None:
        raise fastio.TransferError(errno.EIO, "read", "the file", 4096)

    monkeypatch.setattr("fastio.models.in_place.read_into", failing)
    with pytest.raises(fastio.TransferError, match=r"read failed at offset 4096: .*'0\.weight'") as failed:
        fastio.load_into(sevens().state_dict(), tmp_path)
    assert (failed.value.errno, failed.value.filename, failed.value.offset) == (errno.EIO, "the file", 4096)
    assert "this state is partly filled" in str(failed.value)


def spoil_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)


def replace_behind_its_sidecar(path: Path) -> None:
    """Make the checksums of another file the file's."""
    fastio.seal(path)
    safetensors.torch.save_file({"4.weight": torch.ones(16, 16), "5.weight": torch.ones(16, 16)}, path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: os.truncate(path, path.stat().st_size - 4),
        spoil_header,
        lambda path: path.unlink(),
        lambda path: safetensors.torch.save_file({"4.weight": torch.ones(2), "5.weight": torch.ones(16, 16)}, path),
        replace_behind_its_sidecar,
    ],
)
def test_what_can_be_known_of_any_shard_is_an_error_before_the_module_changes(tmp_path: Path, spoil: Any) -> None:
    shards_of_layers(tmp_path)
    spoil(sorted(tmp_path.glob("*.safetensors"))[-1])
    model = sevens()
    with pytest.raises(fastio.FastIOError) as failed:
        fastio.load_model(model, tmp_path)
    assert "partly filled" not in str(failed.value)
    assert all(bool((parameter == 7).all()) for parameter in model.parameters())


def test_a_file_that_changes_before_the_first_byte_is_read_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards_of_layers(tmp_path)
    path = sorted(tmp_path.glob("*.safetensors"))[-1]
    plan_load = loading.plan_load

    def changing(*arguments: Any) -> Any:
        os.utime(path, (1, 1))
        return plan_load(*arguments)

    monkeypatch.setattr("fastio.models.loading.plan_load", changing)
    model = sevens()
    with pytest.raises(fastio.CorruptFileError, match="written to while it was open"):
        fastio.load_model(model, tmp_path)
    assert all(bool((parameter == 7).all()) for parameter in model.parameters())


def test_in_place_reads_take_no_second_copy_and_count_as_changes(saved: Path) -> None:
    model = Model(2)
    x = torch.randn(4, 32, requires_grad=True)
    loss = (model.layers[0][0](x) ** 2).sum()
    with fastio.record() as transfers:
        fastio.load_model(model, saved)
    assert len(transfers) == 1  # one transfer fills them all
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tensors_that_are_not_contiguous_are_filled(tmp_path: Path) -> None:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Module()
        model.a = nn.Parameter(torch.randn(30, 20).t())
        model.b = nn.Parameter(torch.randn(10, 8)[:, ::2])
        return model

    expected = made(1)
    fastio.save_model(expected, tmp_path / "a.safetensors")
    for atomic in (True, False):
        model = made(2)
        fastio.load_model(model, tmp_path / "a.safetensors", atomic=atomic)
        assert equal(values(model), values(expected))
        assert model.a.stride() == expected.a.stride()


@pytest.mark.parametrize("atomic", [True, False])
def test_hooks_of_the_module_run(tmp_path: Path, atomic: bool) -> None:
    fastio.save_file({"weight": torch.ones(3, 3), "bias": torch.ones(3)}, tmp_path / "a")
    model = nn.Linear(3, 3)
    seen: list[set[str]] = []
    model.register_load_state_dict_pre_hook(lambda module, state, *_: seen.append(set(state)))
    fastio.load_model(model, tmp_path / "a", atomic=atomic)
    assert seen == [{"weight", "bias"}]
    assert torch.equal(model.weight, torch.ones(3, 3))


def test_only_submodules_with_hooks_take_new_memory_and_hooks_see_what_load_state_dict_shows(tmp_path: Path) -> None:
    def made() -> nn.Sequential:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4))

    def hooked(model: nn.Sequential) -> list[Any]:
        seen: list[Any] = []

        def before(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
            old = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            new = {name: state[prefix + name].clone() for name in old}
            assert all(new[name].data_ptr() != tensor.data_ptr() for name, tensor in module.state_dict().items())
            seen.extend([prefix, sorted(name for name in state if name.startswith(prefix)), old, new])

        def after(module: nn.Module, keys: Any) -> None:
            seen.extend([values(module), list(keys.missing_keys), list(keys.unexpected_keys)])

        model[1].register_load_state_dict_pre_hook(before)
        model[1].register_load_state_dict_post_hook(after)
        return seen

    expected = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4))
    fastio.save_model(expected, tmp_path / "a.safetensors")
    model, plain = made(), made()
    ours, theirs = hooked(model), hooked(plain)
    with fastio.record() as transfers:
        assert fastio.load_model(model, tmp_path / "a.safetensors") == ([], [])
    plain.load_state_dict(expected.state_dict())
    assert same(ours, theirs)
    assert equal(values(model), values(expected))
    assert [transfer.nbytes for transfer in transfers] == [160, 160]  # into new memory, and in place


def test_a_hook_that_fails_says_what_is_filled(tmp_path: Path) -> None:
    expected = shards_of_layers(tmp_path)
    model = sevens()

    def failing(*_: Any) -> None:
        raise RuntimeError("a hook")

    model[5].register_load_state_dict_pre_hook(failing)
    with pytest.raises(RuntimeError, match=r"^a hook; this .* partly filled \(loaded: .*as they were: '5\.weight'"):
        fastio.load_model(model, tmp_path)
    assert torch.equal(model[0].weight, expected[0].weight)


def test_a_module_that_makes_its_state_dict_by_itself_gets_the_values(tmp_path: Path) -> None:
    """Its state dict holds copies: values that were read into them would be lost."""

    class Scaled(nn.Linear):
        def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
            destination[prefix + "weight"] = self.weight.detach().clone()

    fastio.save_file({"0.weight": torch.ones(3, 3), "1.weight": torch.ones(3, 3)}, tmp_path / "a")
    model = nn.Sequential(nn.Linear(3, 3, bias=False), Scaled(3, 3, bias=False))
    assert fastio.load_model(model, tmp_path / "a") == ([], [])
    assert all(torch.equal(layer.weight, torch.ones(3, 3)) for layer in model)


def test_an_expanded_parameter_is_refused_before_anything_changes(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.ones(3), "b": torch.ones(4)}, tmp_path / "a")
    model = nn.Module()
    model.a = nn.Parameter(torch.zeros(3))
    model.register_buffer("b", torch.zeros(1).expand(4))
    with pytest.raises(fastio.FormatError, match="'b' is expanded"):
        fastio.load_model(model, tmp_path / "a")
    assert not model.a.any()


def test_a_map_of_devices_gives_each_new_tensor_its_place(tmp_path: Path) -> None:
    shards_of_layers(tmp_path)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(6)))
    with pytest.raises(ValueError, match=r"device has no entry for '2\.weight': name one of its modules, or ''"):
        fastio.load_model(model, tmp_path, device={"0": "cpu", "1.weight": "cpu"})
    for name in ("22", "2.weig"):
        with pytest.raises(ValueError, match=f"device has the key '{name}', which is no name in this Sequential"):
            fastio.load_model(model, tmp_path, device={"": "cpu", name: "cpu"})
    for bad, error in (({"": "meta"}, ValueError), ({0: "cpu"}, TypeError), ({"": "disk"}, RuntimeError)):
        with pytest.raises(error):
            fastio.load_model(model, tmp_path, device=bad)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert fastio.load_model(model, tmp_path, device={"": "cpu"}) == ([], [])


def test_the_error_for_names_that_a_hook_would_change_has_the_cure(tmp_path: Path) -> None:
    fastio.save_file({"old": torch.ones(3, 3), "bias": torch.ones(3)}, tmp_path / "a")
    model = nn.Linear(3, 3)
    with pytest.raises(fastio.ModelMismatchError) as plain:
        fastio.load_model(model, tmp_path / "a")
    assert "hooks" not in str(plain.value)
    model.register_load_state_dict_pre_hook(lambda module, state, *_: state.update(weight=state.pop("old")))
    with pytest.raises(fastio.ModelMismatchError, match=r"if its hooks rename .* fastio\.load_file and"):
        fastio.load_model(model, tmp_path / "a")
    model.load_state_dict(fastio.load_file(tmp_path / "a"))
    assert torch.equal(model.weight, torch.ones(3, 3))


def test_modules_that_cannot_be_loaded_in_part_are_refused(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.ones(4, 3)}, tmp_path / "a")
    model = nn.Module()
    model.a = nn.Parameter(torch.ones(4, 3))
    model.a.untyped_storage().resize_(0)
    with pytest.raises(fastio.FormatError, match=r"'a' has 48 bytes .* was freed"):
        fastio.load_model(model, tmp_path / "a")


def test_lazy_modules_get_their_shape_from_the_file(tmp_path: Path) -> None:
    fastio.save_file({"weight": torch.ones(4, 3), "bias": torch.ones(4)}, tmp_path / "a")
    model = nn.LazyLinear(4)
    assert fastio.load_model(model, tmp_path / "a") == ([], [])
    assert torch.equal(model.weight, torch.ones(4, 3))


def test_a_folder_of_shards(tmp_path: Path) -> None:
    expected = Model(1)
    fastio.save_model(expected, tmp_path / "m", max_shard_size="5KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    for atomic in (True, False):
        model = copy.deepcopy(Model(3))
        assert fastio.load_model(model, tmp_path / "m", atomic=atomic) == ([], [])
        assert equal(values(model), values(expected))
    next((tmp_path / "m").glob("*-00002-*")).unlink()
    with pytest.raises(fastio.ShardMissingError):
        fastio.load_model(Model(3), tmp_path / "m")


def test_bad_arguments(saved: Path) -> None:
    with pytest.raises(ValueError, match="nope"):
        fastio.load_model(Model(), saved, policy="nope")
    with pytest.raises(RuntimeError, match="foo"):
        fastio.load_model(Model(), saved, device="foo")
    with pytest.raises(FileNotFoundError):
        fastio.load_model(Model(), saved.parent / "missing")


@pytest.mark.parametrize("damaged", ["a.weight", "b.weight"])
def test_the_names_of_a_tied_tensor_are_told_once(tmp_path: Path, damaged: str) -> None:
    def made() -> nn.Module:
        model = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in "abc"})
        model["c"].weight = model["a"].weight
        return model

    path = tmp_path / "a.safetensors"
    expected = made()
    fastio.save_model(expected, path)
    content = bytearray(path.read_bytes())
    content[content.index(expected.state_dict()[damaged].numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(fastio.ChecksumError) as failed:
        fastio.load_model(made(), path)
    loaded = "a.weight" if damaged == "b.weight" else "b.weight"
    assert f"(loaded: '{loaded}'; damaged, or read in part: '{damaged}')" in str(failed.value)


@pytest.mark.parametrize("sizes", [(16, 9), (9, 16)])
def test_each_name_of_a_tied_tensor_must_fit(tmp_path: Path, sizes: tuple[int, int]) -> None:
    model = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in "ac"})
    model["c"].weight = model["a"].weight
    state = {f"{name}.weight": torch.ones(size) for name, size in zip("ac", sizes, strict=True)}
    state = {name: tensor.view(4, 4) if len(tensor) == 16 else tensor for name, tensor in state.items()}
    fastio.save_file(state, tmp_path / "a")
    with pytest.raises(fastio.ModelMismatchError, match="shape"):
        fastio.load_model(model, tmp_path / "a", strict=False)
