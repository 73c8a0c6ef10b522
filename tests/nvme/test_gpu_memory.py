"""Tests windows into GPU memory: the logic with stand-in libraries, and the real libraries on a GPU."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fastio.errors import RefusedError
from fastio.nvme import gpu_memory
from fastio.nvme.gpu_memory import GpuWindow, Libraries
from fastio.offload.stores.block_store import BlockStore

GPU, SIZE = 0x7F0000000000, 1 << 20
ABSENT = "libfastio-absent.so.1"


@pytest.fixture(scope="session")
def stand_ins(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One library with the functions of both."""
    made = tmp_path_factory.mktemp("gpu") / "libraries.so"
    source = Path(__file__).parents[1] / "support" / "gpu_libraries" / "libraries.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", made, source], check=True)
    return str(made)


@pytest.fixture
def gpu(stand_ins: str) -> Iterator[Any]:
    """The stand-in, for the test's own checks; nothing may be allocated in it afterwards."""
    library = ctypes.CDLL(stand_ins)
    before = len(os.listdir("/proc/self/fd"))
    yield library
    assert library.gpu_held() == 0
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the memory itself, for ever


def contents(gpu: Any, offset: int, nbytes: int) -> bytes:
    memory = ctypes.create_string_buffer(nbytes)
    assert gpu.gpu_read(ctypes.c_uint64(offset), memory, ctypes.c_uint64(nbytes))
    return memory.raw


def through(gpu: Any, window: GpuWindow, offset: int, store: BlockStore) -> None:
    """Move bytes from the disk into "GPU memory" through the window, and from there back to the disk."""
    sent = torch.arange(window.nbytes, dtype=torch.int32).to(torch.uint8)
    store.write(0, sent.data_ptr(), sent.nbytes)
    store.wait(0)
    store.map(window.address, window.nbytes)
    store.read(0, window.address, window.nbytes)
    store.wait(0)
    assert contents(gpu, offset, window.nbytes) == bytes(sent.numpy())
    store.write(1, window.address, window.nbytes)
    store.wait(1)
    store.unmap(window.address)
    came = torch.zeros_like(sent)
    store.read(1, came.data_ptr(), came.nbytes)
    store.wait(1)
    assert torch.equal(came, sent)


@pytest.mark.parametrize("old", ["", "1"])
def test_dma_buf_window_moves_the_bytes(
    gpu: Any, stand_ins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    monkeypatch.setenv("FAKE_CUDA_OLD", old)
    with BlockStore(tmp_path) as store, GpuWindow(GPU, 3 << 16, Libraries(stand_ins, ABSENT)) as window:
        assert (window.offer.way, window.offer.reasons) == ("dma-buf", ())
        assert str(window.offer) == "reached by a disk through dma-buf"
        through(gpu, window, 0, store)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, SIZE), (65536 + 4096, 5 * 4096), (64, 100), (SIZE - 1, 1)])
def test_gdrcopy_window_moves_the_bytes(gpu: Any, stand_ins: str, tmp_path: Path, offset: int, nbytes: int) -> None:
    """At any address: whole GPU pages around it are pinned and mapped, and bytes outside it do not change."""
    with BlockStore(tmp_path) as store, GpuWindow(GPU + offset, nbytes, Libraries(ABSENT, stand_ins)) as window:
        assert window.offer.way == "GDRCopy"
        assert window.offer.reasons[0].startswith(f"dma-buf: {ABSENT}: cannot open")
        if offset % 4096 == nbytes % 4096 == 0:
            through(gpu, window, offset, store)
        ctypes.memset(window.address, 0xA5, nbytes)
        assert contents(gpu, offset, nbytes) == b"\xa5" * nbytes
        window.close()
        window.close()


@pytest.mark.parametrize(
    ("set_", "reasons"),
    [
        ({"FAKE_CUDA_RESULT": "801"}, ("dma-buf: the CUDA driver says not supported",)),
        ({"FAKE_CUDA_RESULT": "999"}, ("dma-buf: the CUDA driver says error 999",)),
        ({"FAKE_CUDA_UNMAPPABLE": "1"}, ("dma-buf: the driver exports it, but does not let it be mapped: ",)),
        (
            {"FAKE_CUDA_RESULT": "801", "FAKE_GDR_NO_MODULE": "1"},
            ("not supported", "GDRCopy: its kernel module does not answer; sudo modprobe gdrdrv"),
        ),
        ({"FAKE_CUDA_RESULT": "801", "FAKE_GDR_PIN": "22"}, ("not supported", "cannot pin the memory (Invalid")),
        ({"FAKE_CUDA_RESULT": "801", "FAKE_GDR_MAP": "12"}, ("not supported", "cannot map the memory (Cannot")),
    ],
)
def test_failed_ways_are_reported_with_their_reasons(
    gpu: Any, stand_ins: str, monkeypatch: pytest.MonkeyPatch, set_: dict[str, str], reasons: tuple[str, ...]
) -> None:
    for name, value in set_.items():
        monkeypatch.setenv(name, value)
    libraries = Libraries(stand_ins, stand_ins)
    if len(reasons) == 1:
        with GpuWindow(GPU, 4096, libraries) as window:
            assert window.offer.way == "GDRCopy"
            assert reasons[0] in str(window.offer)
        return
    with pytest.raises(RefusedError) as caught:
        GpuWindow(GPU, 4096, libraries)
    assert all(reason in str(caught.value) for reason in reasons)


def test_dma_buf_whose_pages_fault_is_refused_and_nothing_dies(
    gpu: Any, stand_ins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file ends before the mapping once it is mapped, so an access is SIGBUS."""
    held = []

    def map_and_shrink(fd: int, *arguments: Any) -> mmap.mmap:
        made = map_memory(fd, *arguments)
        held.append(os.dup(fd))
        os.ftruncate(fd, 0)
        return made

    map_memory = mmap.mmap
    try:
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", map_and_shrink)
            with pytest.raises(RefusedError, match=r"lets it be mapped, but reading it kills a process \(Bus error\)"):
                GpuWindow(GPU, 3 << 16, Libraries(stand_ins, ABSENT))
    finally:
        for fd in held:
            os.ftruncate(fd, SIZE)
            os.close(fd)
    with GpuWindow(GPU, 3 << 16, Libraries(stand_ins, ABSENT)) as window:
        assert window.offer.way == "dma-buf"


def test_missing_libraries_raise_refused_error(stand_ins: str) -> None:
    with pytest.raises(RefusedError, match=f"no disk can reach this GPU memory: dma-buf: {ABSENT}.*GDRCopy: {ABSENT}"):
        GpuWindow(GPU, 4096, Libraries(ABSENT, ABSENT))
    with pytest.raises(RefusedError, match=r"exports none .11\.7.*not libgdrapi version 2"):
        GpuWindow(GPU, 4096, Libraries("libc.so.6", "libc.so.6"))
    with pytest.raises(ValueError, match="nbytes is 0: expected 1 or more"):
        GpuWindow(GPU, 0, Libraries(stand_ins, stand_ins))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_offer_without_a_gpu_says_so() -> None:
    assert str(gpu_memory.offer()) == "cannot be reached by a disk: torch sees no CUDA device"


@pytest.mark.cuda
def test_window_on_a_gpu_moves_bytes_or_says_why_not(tmp_path: Path) -> None:
    """Either bytes go through the window, or the error says why not."""
    offer = gpu_memory.offer()
    if not offer.way:
        assert "dma-buf" in str(offer)
        assert "GDRCopy" in str(offer)
        pytest.skip(str(offer))
    tensor = torch.arange(4 << 20, dtype=torch.int32, device="cuda").to(torch.uint8)[: 2 << 20]
    torch.cuda.synchronize()
    with GpuWindow(tensor.data_ptr(), tensor.nbytes) as window:
        assert ctypes.string_at(window.address, tensor.nbytes) == bytes(tensor.cpu().numpy())
        ctypes.memset(window.address, 7, tensor.nbytes)
    assert torch.equal(tensor.cpu(), torch.full((2 << 20,), 7, dtype=torch.uint8))
