"""dtype= of load_model and load_into converts what the files hold, as ``tensor.to(dtype)`` does, in bounded memory."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import fastio
import warm_python
from accelerators import DEVICE
from objects import DTYPES, same, same_bits

FLOATS = [
    dtype for dtype in DTYPES if dtype.is_floating_point and "e8m0" not in str(dtype) and "e2m1" not in str(dtype)
]
BOTH = pytest.mark.parametrize("atomic", [True, False])


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers of many sizes, with infinities and a NaN."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10.0 ** torch.arange(-8, 8).repeat(2)
    made.view(-1)[:3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    return made


def saved(path: Path) -> dict[str, torch.Tensor]:
    found = {str(dtype): numbers(40, 32).to(dtype) for dtype in FLOATS}
    found |= {"integers": torch.arange(7), "flags": torch.tensor([True, False]), "scalar": torch.tensor(3.3)}
    found |= {"complex": torch.tensor([1 + 2j]), "empty": torch.empty(0, 4)}
    fastio.save(found, path)
    return found


def converted(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


class Holder(nn.Module):
    """A module with a buffer for each tensor; names may have dots."""

    def __init__(self, tensors: dict[str, torch.Tensor], device: str) -> None:
        super().__init__()
        self.names = {f"n{number}": name for number, name in enumerate(tensors)}
        for name, (_, tensor) in zip(self.names, tensors.items(), strict=True):
            self.register_buffer(name, torch.empty_like(tensor, device=device))


@BOTH
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_state_gets_what_to_gives(tmp_path: Path, dtype: torch.dtype, suffix: str, atomic: bool) -> None:
    path = tmp_path / f"a.{suffix}"
    tensors = saved(path)
    state = {name: torch.zeros_like(tensor) for name, tensor in converted(tensors, dtype).items()}
    assert fastio.load_into(state, path, dtype=dtype, atomic=atomic) == ([], [])
    assert same(state, converted(tensors, dtype))


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_tensors_on_the_meta_device_get_the_dtype(tmp_path: Path, dtype: torch.dtype, atomic: bool) -> None:
    path = tmp_path / "a.safetensors"
    expected = converted(saved(tmp_path / "b.safetensors"), dtype)
    model = Holder(expected, "meta")
    fastio.save({new: fastio.load(tmp_path / "b.safetensors")[old] for new, old in model.names.items()}, path)
    model.float()  # the dtype that they are made with is of no account
    model.n0 = nn.Parameter(model.n0, requires_grad=False)
    assert fastio.load_model(model, path, dtype=dtype, atomic=atomic) == ([], [])
    assert same({model.names[name]: tensor for name, tensor in model.state_dict().items()}, expected)
    assert isinstance(model.n0, nn.Parameter)


@BOTH
def test_large_tensors_are_converted_in_pieces(tmp_path: Path, atomic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.models.in_place.BATCH_BYTES", 1 << 10)
    tensors = {"plain": numbers(90, 32), "turned": numbers(7, 60, 32, seed=1), "row": numbers(32).repeat(40)}
    fastio.save_file(tensors, tmp_path / "a")
    state = {name: torch.zeros(tensor.shape, dtype=torch.bfloat16) for name, tensor in tensors.items()}
    state["turned"] = torch.zeros(60, 32, 7, dtype=torch.bfloat16).permute(2, 0, 1)
    with fastio.record() as transfers:
        fastio.load_into(state, tmp_path / "a", dtype=torch.bfloat16, atomic=atomic)
    assert all(
        same_bits(state[name].contiguous(), tensor) for name, tensor in converted(tensors, torch.bfloat16).items()
    )
    assert all(transfer.verified for transfer in transfers)


@pytest.mark.parametrize("piece", [0, 50, 89])
def test_damage_in_a_piece_is_found(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.models.in_place.BATCH_BYTES", 1 << 10)
    path, tensors = tmp_path / "a", {"x": torch.randn(90, 32), "y": torch.ones(5)}
    fastio.save_file(tensors, path)
    content = bytearray(path.read_bytes())
    content[content.index(tensors["x"][piece].numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    state = {"x": torch.zeros(90, 32, dtype=torch.float64), "y": torch.zeros(5, dtype=torch.float64)}
    with pytest.raises(fastio.ChecksumError, match=r"damaged, or read in part: 'x'; as they were: 'y'"):
        fastio.load_into(state, path, dtype=torch.float64)
    assert not state["y"].any()
    with torch.device("meta"):
        model = Holder(state, "meta")
    fastio.save_file({"n0": tensors["x"], "n1": tensors["y"]}, tmp_path / "b")
    (tmp_path / "b").write_bytes(
        (tmp_path / "b").read_bytes().replace(tensors["x"][piece].numpy().tobytes(), bytes(128))
    )
    with pytest.raises(fastio.ChecksumError) as failed:
        fastio.load_model(model, tmp_path / "b", dtype=torch.float64)
    assert "partly filled" not in str(failed.value)
    assert model.n0.is_meta
    assert model.n1.is_meta
    with pytest.warns(RuntimeWarning, match="stay without memory: 'n0'"):
        missing, _ = fastio.load_model(model, tmp_path / "b", dtype=torch.float64, strict=False, atomic=True)
    assert missing == ["n0"]
    assert model.n0.is_meta
    assert same_bits(model.n1, torch.ones(5, dtype=torch.float64))


@BOTH
def test_what_does_not_fit_is_refused_before_anything_changes(tmp_path: Path, atomic: bool) -> None:
    path = tmp_path / "a.safetensors"
    fastio.save_file({"w": torch.ones(3), "i": torch.arange(3)}, path)
    half, whole = torch.zeros(3, dtype=torch.float16), torch.zeros(3, dtype=torch.int64)
    bad = [
        ({"w": half, "i": whole}, None, r"'w' in .* has dtype torch.float32, the state's is torch.float16: load with "
         r"dtype=torch.float16, which converts, or give it a tensor of torch.float32"),
        ({"w": half, "i": whole}, torch.bfloat16, r"'w' of the state has dtype torch.float16, dtype=torch.bfloat16"),
        ({"w": whole, "i": whole + 0}, torch.float16, r"'w' in .*has dtype torch.float32, the state's is torch.int64"),
        ({"w": half, "i": half + 0}, torch.float16, r"'i' in .*has dtype torch.int64, the state's is torch.float16"),
    ]  # fmt: skip
    for state, dtype, match in bad:
        with pytest.raises(fastio.ModelMismatchError, match=match):
            fastio.load_into(state, path, dtype=dtype, atomic=atomic)
    for dtype in (torch.int32, torch.complex64, "float16"):
        with pytest.raises(ValueError, match=r"expected a torch\.dtype of floating-point numbers"):
            fastio.load_into({"w": half, "i": whole}, path, dtype=dtype)
    assert not half.any()
    assert not whole.any()


@pytest.mark.gpu
def test_tensors_of_a_device_are_converted_there(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(300, 40), "b": torch.arange(5)}
    fastio.save_file(tensors, tmp_path / "a")
    state = {"a": torch.zeros(300, 40, dtype=torch.bfloat16, device=DEVICE), "b": torch.zeros(5).long().to(DEVICE)}
    fastio.load_into(state, tmp_path / "a", dtype=torch.bfloat16)
    assert same_bits(state["a"].cpu(), tensors["a"].bfloat16())
    assert same_bits(state["b"].cpu(), tensors["b"])


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_memory_beyond_the_module_is_bounded(tmp_path: Path, where: str) -> None:
    tensors = {f"w{number}": torch.randn(4096, 1024) for number in range(6)} | {"large": torch.randn(24576, 1024)}
    fastio.save_file(tensors, tmp_path / "a")
    program = f"""
        import threading, torch, fastio, json
        fastio.load_model
        shapes = {{{", ".join(f"{name!r}: {tuple(tensor.shape)}" for name, tensor in tensors.items())}}}
        with torch.device({where!r}):
            made = {{name: torch.nn.Parameter(torch.ones(shape).bfloat16()) for name, shape in shapes.items()}}
        model = torch.nn.ParameterDict(made)
        def anon():
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) >> 10
        before = anon()
        peak, stop = [before], threading.Event()
        def watch():
            while not stop.wait(0.001):
                peak[0] = max(peak[0], anon())
        thread = threading.Thread(target=watch)
        thread.start()
        fastio.load_model(model, {str(tmp_path / "a")!r}, dtype=torch.bfloat16)
        stop.set()
        thread.join()
        print(json.dumps(peak[0] - before))
    """
    output = warm_python.run(textwrap.dedent(program))
    own = sum(tensor.nbytes // 2 for tensor in tensors.values()) >> 20 if where == "meta" else 0
    assert json.loads(output.stdout) - own <= 96  # 64 MiB, and torch's and Python's own
