"""Compiles the simulated accelerator for the torch that is installed; each file once for each state of the source."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

_SOURCE = Path(__file__).parent / "device"
_TORCH = Path(torch.__file__).parent
_BUILD = Path(__file__).parent.parent.parent / "build" / "accelerator" / torch.__version__


def library() -> Path:
    """The path of the shared library. It is compiled if it is not there, by up to $MAX_JOBS compilers at once."""
    command = [_compiler(), *_flags()]
    headers = [source.read_bytes() for source in sorted(_SOURCE.glob("*.hpp"))]
    sources = sorted(_SOURCE.glob("*.cpp"))
    digests = [_digest(" ".join(command).encode(), *headers, source.read_bytes()) for source in sources]
    objects = [_BUILD / f"{source.stem}-{digest}.o" for source, digest in zip(sources, digests, strict=True)]
    path = _BUILD / f"simulated-{_digest(''.join(digests).encode())}.so"
    if path.exists():
        return path
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling the same
        with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
            list(pool.map(lambda source, made: _make(made, [*command, "-c", str(source)]), sources, objects))
        libraries = [f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10", "-lpthread"]
        _make(path, [_compiler(), "-shared", *map(str, objects), *libraries])
    return path


def has_compiler() -> bool:
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++"))


def _compiler() -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("no C++ compiler (g++ or c++) on PATH")
    return compiler


def _flags() -> list[str]:
    include = _TORCH / "include"
    return [
        *("-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *("-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include")),
    ]


def _make(target: Path, command: list[str]) -> None:
    """Run a compiler, if its output is not there. The output is complete or absent."""
    if target.exists():
        return
    with tempfile.TemporaryDirectory(dir=_BUILD) as folder:
        output = Path(folder) / target.name
        result = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{' '.join(result.args)} failed:\n{result.stderr}")
        output.replace(target)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
