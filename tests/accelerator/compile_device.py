"""Compiles the simulated accelerator for the torch that is installed; once for each state of the source."""

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
_PARTS = 2
_BUILD = Path(__file__).parent.parent.parent / "build" / "accelerator" / torch.__version__


def library() -> Path:
    """The path of the shared library. It is compiled if it is not there, in two parts at once."""
    command = [_compiler(), *_flags()]
    sources = sorted(_SOURCE.glob("*/*.cpp"))
    contents = [source.read_bytes() for source in (*sorted(_SOURCE.glob("*/*.hpp")), *sources)]
    path = _BUILD / f"simulated-{_digest(' '.join(command).encode(), *contents)}.so"
    if path.exists():
        return path
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling the same
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=_BUILD) as folder:
                parts = [(Path(folder) / f"part{number}", sources[number::_PARTS]) for number in range(_PARTS)]
                with ThreadPoolExecutor(_PARTS) as pool:
                    list(pool.map(lambda part: _compile(command, *part), parts))
                linked = Path(folder) / path.name
                objects = [str(part.with_suffix(".o")) for part, _ in parts]
                libraries = [f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10", "-lpthread"]
                _run([_compiler(), "-shared", *objects, *libraries, "-o", str(linked)])
                linked.replace(path)
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
        f"-I{_SOURCE}",
        *("-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *("-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include")),
    ]


def _compile(command: list[str], part: Path, sources: list[Path]) -> None:
    """Compile sources as one, because each alone spends most of its time on torch's headers."""
    part.with_suffix(".cpp").write_text("".join(f'#include "{source}"\n' for source in sources), encoding="utf-8")
    _run([*command, "-c", str(part.with_suffix(".cpp")), "-o", str(part.with_suffix(".o"))])


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr}")


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
