"""A stand-in for CuPy, whose kernels run on the emulated device of the native tests, on host memory."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fastio.devices import cupy_kernels

STREAM = 0x5EED  # the address of torch's current stream
_PARAMETERS = 5  # of the kernel with the most


def build(compiler: str, native: Path, folder: Path) -> ctypes.CDLL:
    """Compile the kernels for the host; ``native`` is the folder of their sources."""
    library = folder / "kernels.so"
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{native}"]
    source = Path(__file__).with_name("kernels.cpp")
    subprocess.run([*command, str(source), "-o", str(library), "-lstdc++"], check=True)
    return ctypes.CDLL(str(library))


@contextlib.contextmanager
def installed(library: ctypes.CDLL) -> Iterator[ModuleType]:
    """Make ``import cupy`` find the stand-in. Kernels started on any device run at once, on the host."""
    cupy: Any = ModuleType("cupy")
    running: list[int] = []

    @contextlib.contextmanager
    def in_stream(stream: Any) -> Iterator[None]:
        version, address = stream.__cuda_stream__()
        assert version == 0
        running.append(address)
        yield
        running.pop()

    class RawModule:
        def __init__(self, *, code: str, options: tuple[str, ...]) -> None:
            assert "__global__" in code
            assert options == ("--std=c++17",)

        def compile(self) -> None: ...

        def get_function(self, name: str) -> Callable[..., None]:
            kernel = ctypes.cast(getattr(library, name), ctypes.c_void_p)

            def launch(blocks: tuple[int], threads: tuple[int], arguments: tuple[int, ...]) -> None:
                assert running == [STREAM]
                values = (ctypes.c_uint64 * _PARAMETERS)(*arguments)
                library.launch(kernel, ctypes.c_uint(*blocks), ctypes.c_uint(*threads), values)

            return launch

    cupy.RawModule = RawModule
    cupy.cuda = SimpleNamespace(
        Device=lambda number: contextlib.nullcontext(), Stream=SimpleNamespace(from_external=in_stream)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))
        cupy_kernels._compile.cache_clear()
        yield cupy
    cupy_kernels._compile.cache_clear()
