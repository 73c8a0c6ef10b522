"""Tests the activation codecs: exact ones keep all bits, the others keep their error bounds."""

from __future__ import annotations

import copy
import dataclasses
import importlib.resources
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastio
from fastio import _native
from fastio.errors import FastIOError, PayloadError, ToolUnavailableError, UnsupportedError
from fastio.offload.codecs import csr_cuda
from fastio.offload.codecs.device_numbers import run
from fastio.offload.codecs.encoding import CODECS, EXACT, Encoded, decode, encode, is_exact
from fastio.runtime.native_errors import NativeError
from offloading import gradients

KERNELS = _native.csr_kernels()
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.complex64, torch.complex128]

# Bits that a comparison of values would miss: -0.0, quiet and signalling NaNs with payloads, infinities, denormals.
ODD = {
    2: [0x8000, 0x7E01, 0x7C01, 0xFE7F, 0x7C00, 0xFC00, 0x0001, 0x8001],
    4: [0x80000000, 0x7FC00001, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 1, 0x80000001],
    8: [1 << 63, 0x7FF8000000000001, 0x7FF0000000000001, (1 << 64) - 1, 0x7FF0000000000000, 1, 1 << 32],
}

lengths = st.one_of(
    st.integers(0, 1100),
    st.sampled_from([127, 128, 129, 32 * 128 - 1, 32 * 128, 32 * 128 + 1, 9999]),
)


def noise(elements: int, itemsize: int, density: float, seed: int) -> np.ndarray:
    """Return words of which about this fraction is non-zero, a third of those with unusual bits."""
    random = np.random.default_rng(seed)
    words = random.integers(1, 1 << (8 * itemsize), elements, dtype=np.uint64)
    odd = random.choice(np.array(ODD[itemsize], dtype=np.uint64), elements)
    words = np.where(random.random(elements) < 1 / 3, odd, words)
    words[random.random(elements) >= density] = 0
    return words.astype(f"u{itemsize}")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and _raw(a) == _raw(b)


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def sparse(elements: int, density: float = 0.4, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(elements, generator=generator) < density
    return (torch.rand(elements, generator=generator) + 0.5).to(dtype) * kept


def with_payload(encoded: Encoded, payload: torch.Tensor) -> Encoded:
    return dataclasses.replace(encoded, payload=payload, nbytes=payload.nbytes)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("itemsize", [2, 4, 8])
@given(elements=lengths, density=st.floats(0, 1), seed=st.integers(0, 2**32), shift=st.integers(0, 8))
def test_every_csr_kernel_keeps_every_bit(
    kernel: str, itemsize: int, elements: int, density: float, seed: int, shift: int
) -> None:
    words = noise(elements, itemsize, density, seed)
    source = np.concatenate([np.ones(shift, words.dtype), words])[shift:]  # not always aligned
    kept = int(np.count_nonzero(words))
    assert _native.csr_count(source.ctypes.data, elements, itemsize, kernel) == kept
    nbytes = _native.csr_nbytes(elements, itemsize, kept)
    payload = np.full(nbytes + 128, 0xA5, np.uint8)
    _native.csr_encode(source.ctypes.data, elements, itemsize, payload.ctypes.data + 64, nbytes, kernel)
    assert (payload[:64] == 0xA5).all()
    assert (payload[64 + nbytes :] == 0xA5).all()
    _check_format(payload[64 : 64 + nbytes], words)
    back = np.full(elements + 128, 0xA5, words.dtype)
    destination = back.ctypes.data + 64 * itemsize
    _native.csr_decode(payload.ctypes.data + 64, nbytes, destination, elements, itemsize, kernel)
    assert (back[64 : 64 + elements] == words).all()
    assert (back[:64] == 0xA5).all()
    assert (back[64 + elements :] == 0xA5).all()


def _check_format(payload: np.ndarray, words: np.ndarray) -> None:
    """Check with numpy that the payload has the format of csr.hpp."""
    rows = -(-len(words) // 128)
    padded = np.zeros(rows * 128, words.dtype)
    padded[: len(words)] = words
    counts = np.count_nonzero(padded.reshape(rows, 128), axis=1)
    head = (20 * rows + 7) // 8 * 8
    assert (payload[: 16 * rows] == np.packbits(padded != 0, bitorder="little")).all()
    assert (payload[16 * rows : 20 * rows].view("<u4") == np.cumsum(counts) - counts).all()
    assert (payload[20 * rows : head] == 0).all()
    assert payload[head:].tobytes() == words[words != 0].tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=200)
@given(
    elements=st.integers(1, 9000),
    itemsize=st.sampled_from([2, 4, 8]),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_damaged_payload_raises_an_error(
    kernel: str, elements: int, itemsize: int, density: float, seed: int, data: st.DataObject
) -> None:
    words = noise(elements, itemsize, density, seed)
    nbytes = _native.csr_nbytes(elements, itemsize, int(np.count_nonzero(words)))
    payload = np.zeros(nbytes, np.uint8)
    _native.csr_encode(words.ctypes.data, elements, itemsize, payload.ctypes.data, nbytes, kernel)
    head = _native.csr_nbytes(elements, itemsize, 0)
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "noise"]))
    if kind == "flip":
        payload[data.draw(st.integers(0, head - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        payload = payload[: data.draw(st.integers(0, nbytes - 1))].copy()
    elif kind == "longer":
        payload = np.concatenate([payload, np.zeros(data.draw(st.integers(1, 200)), np.uint8)])
    else:
        payload[:] = np.random.default_rng(seed).integers(0, 256, nbytes)
    back = np.full(elements + 128, 0xA5, words.dtype)
    with pytest.raises(NativeError, match=r"damaged at row \d+"):
        _native.csr_decode(
            payload.ctypes.data, len(payload), back.ctypes.data + 64 * itemsize, elements, itemsize, kernel
        )
    assert (back[:64] == 0xA5).all()
    assert (back[64 + elements :] == 0xA5).all()


def test_unavailable_kernel_raises_an_error() -> None:
    with pytest.raises(NativeError, match="no CSR-128 kernel"):
        _native.csr_count(0, 0, 4, "abacus")


@pytest.mark.parametrize("codec", CODECS)
@given(
    elements=lengths,
    dtype=st.sampled_from([*DTYPES, torch.uint8, torch.bool]),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_decoded_tensor_has_the_shape_dtype_and_exactness_of_its_codec(
    codec: str, elements: int, dtype: torch.dtype, density: float, seed: int
) -> None:
    tensor = sparse(elements, density, dtype, seed)
    encoded = encode(tensor, codec)
    back = decode(encoded)
    assert (back.shape, back.dtype, back.device) == (tensor.shape, tensor.dtype, tensor.device)
    assert back.is_contiguous()
    assert encoded.payload.dtype == torch.uint8
    assert encoded.payload.dim() == 1
    assert encoded.nbytes == encoded.payload.nbytes
    assert encoded.ratio == (tensor.nbytes / encoded.nbytes if elements else 1.0)
    assert encoded.codec in CODECS
    if is_exact(encoded.codec):
        assert same_bits(back, tensor)
    else:
        assert dtype == torch.float32
        assert not is_exact(codec)


@pytest.mark.parametrize("codec", EXACT)
@given(elements=lengths, density=st.floats(0, 1), seed=st.integers(0, 2**32), dtype=st.sampled_from(DTYPES[:5]))
def test_exact_codecs_keep_nan_payloads_negative_zeros_and_denormals(
    codec: str, elements: int, density: float, seed: int, dtype: torch.dtype
) -> None:
    words = noise(elements, dtype.itemsize, density, seed)
    tensor = torch.frombuffer(bytearray(words.tobytes()), dtype=dtype) if elements else torch.empty(0, dtype=dtype)
    assert same_bits(decode(encode(tensor, codec)), tensor)


@pytest.mark.parametrize(("codec", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300))
def test_rounding_keeps_its_error_bounds_or_keeps_the_bits(codec: str, dtype: torch.dtype, bits: list[int]) -> None:
    words = np.array(bits, dtype=np.uint32)
    _check_rounding(torch.from_numpy(words.view(np.float32).copy()), codec, dtype)
    # A tensor of arbitrary bits seldom fits the bounds: also test only the elements that do.
    values = words.view(np.float32)
    fits = values[np.abs(values) <= torch.finfo(dtype).max]
    if len(fits):
        assert encode(torch.from_numpy(fits.copy()), codec).codec == codec
        _check_rounding(torch.from_numpy(fits.copy()), codec, dtype)


def _check_rounding(tensor: torch.Tensor, codec: str, dtype: torch.dtype) -> None:
    encoded = encode(tensor, codec)
    back = decode(encoded)
    if not bool((tensor.abs() <= torch.finfo(dtype).max).all()):
        assert encoded.codec == "none"
        assert same_bits(back, tensor)
        return
    assert encoded.codec == codec
    assert encoded.ratio == 2
    relative, absolute = (2.0**-11, 2.0**-25) if codec == "fp16" else (2.0**-8, 2.0**-134)
    error = (tensor.double() - back.double()).abs()
    assert bool((error <= torch.clamp(relative * tensor.double().abs(), min=absolute)).all())
    assert bool((torch.signbit(back) == torch.signbit(tensor)).all())


@pytest.mark.parametrize("codec", ["fp16", "csr+fp16"])
@pytest.mark.parametrize("value", [65505.0, -65505.0, math.inf, -math.inf, math.nan])
def test_values_out_of_range_of_half_precision_are_not_rounded(codec: str, value: float) -> None:
    tensor = torch.rand(1000) + 1 / 3
    tensor[617] = value
    encoded = encode(tensor, codec)
    assert encoded.codec == "none"
    assert same_bits(decode(encoded), tensor)
    tensor[:900] = 0
    tensor[100] = value
    encoded = encode(tensor, codec)
    assert encoded.codec == ("csr" if codec == "csr+fp16" else "none")
    assert same_bits(decode(encoded), tensor)


@pytest.mark.parametrize("value", [65504.0, -65504.0, -0.0])
def test_largest_values_of_half_precision_are_rounded(value: float) -> None:
    tensor = torch.tensor([value, 1.0])
    encoded = encode(tensor, "fp16")
    assert encoded.codec == "fp16"
    assert same_bits(decode(encoded), tensor)


def test_csr_fp16_decodes_to_the_same_elements_as_fp16() -> None:
    tensor = sparse(100_000)
    encoded = encode(tensor, "csr+fp16")
    assert encoded.codec == "csr+fp16"
    assert torch.equal(decode(encoded), tensor.half().float())


@pytest.mark.parametrize(("codec", "width"), [("csr", 4), ("csr+fp16", 2)])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.4, 0.9, 1.0])
def test_ratio_follows_from_the_density(codec: str, width: int, density: float) -> None:
    tensor = torch.ones(128, 2048)
    tensor.view(-1)[torch.randperm(tensor.numel())[int(density * tensor.numel()) :]] = 0
    measured = int(tensor.count_nonzero()) / tensor.numel()
    assert encode(tensor, codec).ratio == pytest.approx(4 / (width * measured + 20 / 128), rel=1e-6)


@pytest.mark.parametrize(("density", "used"), [(0.4, "csr"), (0.7, "csr"), (0.8, "none"), (1.0, "none")])
@pytest.mark.parametrize("elements", [5_000, 1_000_000])  # counted whole, and sampled before
def test_lossless_packs_only_if_the_ratio_pays(elements: int, density: float, used: str) -> None:
    tensor = sparse(elements, density)
    encoded = encode(tensor, "lossless")
    assert encoded.codec == used
    assert same_bits(decode(encoded), tensor)


def test_bfloat16_is_packed_by_its_exponents() -> None:
    tensor = (torch.randn(100_003, generator=torch.Generator().manual_seed(0)) * 3).to(torch.bfloat16)
    encoded = encode(tensor, "exponents")
    assert encoded.codec == "exponents"
    assert encoded.ratio > 1.3
    assert same_bits(decode(encoded), tensor)
    assert encode(tensor.to(torch.float16), "exponents").codec == "none", "its exponents have 5 bits"
    assert encode(torch.relu(tensor), "exponents").codec == "csr"
    assert encode(tensor, "lossless").codec == "none"
    damaged = encoded.payload.clone()
    damaged[386 + 1] = 8
    with pytest.raises(PayloadError, match=r"block \d+ of the payload is damaged"):
        decode(dataclasses.replace(encoded, payload=damaged))


def test_activations_in_bfloat16_take_fewer_bytes_in_the_store(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, dtype=torch.bfloat16) for _ in range(3)), torch.nn.Tanh())
    x = torch.randn(512, 256, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    model(x).square().mean().backward()
    plain = gradients(model)
    with fastio.Offload(store=tmp_path, policy="fastensor", codec="exponents") as offload:
        loss = model(x).square().mean()
    loss.backward()
    assert all(same_bits(mine, other) for mine, other in zip(gradients(model), plain, strict=True))
    report = offload.report()
    assert report.counts.encoded == 4
    assert report.traffic["disk"].written_bytes * 1.3 < report.activation_bytes
    offload.close()


def test_codec_none_copies_no_contiguous_tensor() -> None:
    tensor = torch.rand(5, 7)
    encoded = encode(tensor, "none")
    assert encoded.payload.data_ptr() == tensor.data_ptr()
    assert decode(encoded).data_ptr() == tensor.data_ptr()


def test_unaligned_payload_is_decoded() -> None:
    tensor = sparse(1000)
    for codec in CODECS:
        encoded = encode(tensor, codec)
        for shift in range(1, 9):
            slab = torch.zeros(encoded.nbytes + 16, dtype=torch.uint8)
            slab[shift : shift + encoded.nbytes] = encoded.payload
            moved = dataclasses.replace(encoded, payload=slab[shift : shift + encoded.nbytes])
            assert same_bits(decode(moved), decode(encoded)), (codec, shift)


@pytest.mark.parametrize("codec", CODECS)
def test_strided_viewed_and_graph_tensors_are_encoded(codec: str) -> None:
    base = sparse(4 * 6 * 8).view(4, 6, 8)
    for tensor in (
        base.transpose(0, 2),
        base[:, ::2, 1:],
        base.to(torch.complex64).conj(),
        torch.view_as_complex(base.view(4, 6, 4, 2)).conj().imag,  # the negative bit
        base[0, 0, 0],
        base[:, :0],
        base[:1].expand(5, 6, 8),
        base.clone().requires_grad_() * 2,
    ):
        back = decode(encode(tensor, codec))
        assert back.is_contiguous()
        assert not back.requires_grad
        assert torch.allclose(back, tensor.detach().resolve_conj().resolve_neg(), rtol=2.0**-8, atol=0)


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_do_not_switch_the_grad_mode(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while the mode is off would leave it off in the user's thread."""
    monkeypatch.setattr(torch, "set_grad_enabled", None)
    tensor = sparse(1000).requires_grad_()
    encoded = encode(tensor, codec)
    back = decode(encoded)
    assert not encoded.payload.requires_grad
    assert not back.requires_grad
    assert torch.allclose(back, tensor.detach(), rtol=2.0**-8, atol=0)


@pytest.mark.parametrize("codec", CODECS)
def test_payload_of_the_wrong_size_raises_an_error(codec: str) -> None:
    encoded = encode(sparse(1000), codec)
    for payload in (encoded.payload[:-1], torch.cat([encoded.payload, encoded.payload[:4]]), encoded.payload[:0]):
        with pytest.raises(PayloadError, match=r"expected \d+"):
            decode(dataclasses.replace(encoded, payload=payload))
        with pytest.raises(PayloadError, match=r"\[1000\] torch\.float32 cannot be decoded"):
            decode(with_payload(encoded, payload))
    with pytest.raises(PayloadError, match="contiguous bytes"):
        decode(dataclasses.replace(encoded, payload=encoded.payload.view(1, -1)))
    with pytest.raises(PayloadError, match="contiguous bytes"):
        decode(dataclasses.replace(encoded, payload=encoded.payload.repeat_interleave(2)[::2]))


def test_damaged_directory_raises_an_error_that_names_the_row() -> None:
    encoded = encode(sparse(128 * 100), "csr")
    payload = encoded.payload.clone()
    payload[16 * 50] ^= 1
    with pytest.raises(PayloadError, match="at row") as caught:
        decode(dataclasses.replace(encoded, payload=payload))
    assert isinstance(caught.value, FastIOError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_wrong_number_of_elements_raises_an_error() -> None:
    encoded = encode(torch.ones(1000), "csr")
    for shape in ((0,), (999,), (1025,), (1 << 20,), (1 << 33,)):
        with pytest.raises(PayloadError):
            decode(dataclasses.replace(encoded, shape=shape))
    with pytest.raises(PayloadError):
        decode(dataclasses.replace(encoded, dtype=torch.uint8))


def test_unsupported_tensors_raise_an_error_with_the_reason() -> None:
    with pytest.raises(ValueError, match="unknown codec 'zip'"):
        encode(torch.ones(1), "zip")
    with pytest.raises(ValueError, match="choose one of none, csr, lossless, exponents"):
        is_exact("")
    with pytest.raises(UnsupportedError, match="sparse_coo"):
        encode(torch.eye(3).to_sparse(), "none")
    with pytest.raises(UnsupportedError, match="meta"):
        encode(torch.ones(3, device="meta"), "csr")


def test_encoded_is_immutable() -> None:
    encoded = encode(sparse(100), "csr")
    with pytest.raises(dataclasses.FrozenInstanceError):
        encoded.codec = "none"  # type: ignore[misc]
    assert same_bits(decode(copy.deepcopy(encoded)), decode(encoded))


def test_the_source_of_the_gpu_part_travels_with_the_package() -> None:
    source = importlib.resources.files("fastio.offload.codecs").joinpath("csr.cu").read_text(encoding="utf-8")
    assert "csr_unpack_##ITEMSIZE" in source


@pytest.mark.skipif(csr_cuda.KERNELS.is_available(), reason="CuPy works here")
def test_gpu_codec_without_cupy_raises_an_error_with_the_install_command() -> None:
    with pytest.raises(ToolUnavailableError, match="pip install"):
        run(csr_cuda.pack(torch.zeros(1), 1, 4, 0))


@pytest.mark.cuda
@pytest.mark.parametrize("itemsize", [2, 4, 8])
@settings(max_examples=50)
@given(elements=lengths, density=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_gpu_and_cpu_payloads_are_interchangeable(itemsize: int, elements: int, density: float, seed: int) -> None:
    pytest.importorskip("cupy")
    dtype = {2: torch.float16, 4: torch.float32, 8: torch.float64}[itemsize]
    words = noise(elements, itemsize, density, seed)
    host = torch.frombuffer(bytearray(words.tobytes()), dtype=dtype) if elements else torch.empty(0, dtype=dtype)
    on_host, on_device = encode(host, "csr"), encode(host.cuda(), "csr")
    assert on_device.payload.is_cuda
    assert same_bits(on_device.payload, on_host.payload)
    assert same_bits(decode(on_device), host)
    assert decode(on_device).is_cuda
    assert same_bits(decode(dataclasses.replace(on_device, payload=on_host.payload)), host)


@pytest.mark.cuda
@settings(max_examples=50)
@given(elements=st.integers(1, 9000), density=st.floats(0, 1), seed=st.integers(0, 2**32), data=st.data())
def test_gpu_codec_detects_damaged_payloads(elements: int, density: float, seed: int, data: st.DataObject) -> None:
    pytest.importorskip("cupy")
    encoded = encode(sparse(elements, density, seed=seed).cuda(), "csr")
    payload = encoded.payload.clone()
    at = data.draw(st.integers(0, _native.csr_nbytes(elements, 4, 0) - 1))
    payload[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(PayloadError):
        decode(dataclasses.replace(encoded, payload=payload))


@pytest.mark.cuda
@pytest.mark.parametrize("codec", CODECS)
def test_codecs_keep_their_exactness_on_the_gpu(codec: str) -> None:
    pytest.importorskip("cupy")
    host = sparse(100_003)
    encoded = encode(host.cuda(), codec)
    back = decode(encoded)
    assert back.is_cuda
    assert same_bits(back, decode(encode(host, codec)))
    assert encoded.codec == encode(host, codec).codec
