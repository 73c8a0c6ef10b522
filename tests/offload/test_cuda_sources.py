"""Compiles the CUDA sources for four architectures by NVRTC, as CuPy does at run time. No GPU is needed."""

from __future__ import annotations

import ctypes
import importlib.resources
import sys
from pathlib import Path
from typing import Any

import pytest

OPTIONS = ["--std=c++17"]  # those that fastio gives CuPy
SOURCES = {
    ("fastio.offload.codecs", "csr.cu"): {
        f"csr_{verb}_{itemsize}" for verb in ("find", "pack", "unpack") for itemsize in (2, 4, 8)
    },
    ("fastio.devices", "crc32.cu"): {"crc32_pieces"},
}


class Nvrtc:
    """The library ``libnvrtc``; every error code of a call is raised."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        assert code == 0, f"{name}: {self._library.nvrtcGetErrorString(code).decode()}"

    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def architectures(self) -> set[str]:
        count = ctypes.c_int()
        self.call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self.call("nvrtcGetSupportedArchs", numbers)
        return {f"sm_{number}" for number in numbers}

    def compile(self, source: str, architecture: str) -> tuple[bytes, str]:
        """Return the machine code, empty after an error, and what the compiler said."""
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"source.cu", 0, None, None)
        options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={architecture}")]
        code = self._library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = self._get(program, "nvrtcGetProgramLog").rstrip(b"\0").decode()
        machine_code = self._get(program, "nvrtcGetCUBIN") if code == 0 else b""
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return machine_code, log

    def _get(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"{name}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(name, program, buffer)
        return buffer.raw


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    """The newest NVRTC among the installed packages of NVIDIA."""
    found = [path for folder in sys.path for path in Path(folder).glob("nvidia/*/lib/libnvrtc.so.*")]
    if not found:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    return max(map(Nvrtc, found), key=Nvrtc.version)


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("package", "file"), SOURCES)
def test_source_compiles_without_a_warning(nvrtc: Nvrtc, package: str, file: str, architecture: str) -> None:
    if architecture not in nvrtc.architectures():
        pytest.skip(f"NVRTC {nvrtc.version()} does not know {architecture}")
    source = importlib.resources.files(package).joinpath(file).read_text(encoding="utf-8")
    machine_code, log = nvrtc.compile(source, architecture)
    assert machine_code, log
    assert log == ""
    assert {name for name in SOURCES[package, file] if f".text.{name}\0".encode() in machine_code} == SOURCES[
        package, file
    ]


def test_error_in_a_source_is_reported(nvrtc: Nvrtc) -> None:
    machine_code, log = nvrtc.compile('extern "C" __global__ void wrong() { undeclared = 1; }', "sm_80")
    assert machine_code == b""
    assert "undeclared" in log
