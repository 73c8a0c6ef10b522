"""Builds, checks and tries the wheels and the sdist: ``make wheels``.

A wheel for each Python and processor, by one compiler, zig's Clang: it has the symbol versions of glibc 2.28, so that
no old Linux is needed, and it compiles for ARM64 on x86-64. auditwheel names the wheels by the oldest glibc that has
their symbols, 2.28 at most; twine checks what an index will show. Each wheel's native part is then run with nothing on
the path: those for ARM64 by the Pythons of --arm64-python, as "3.11=qemu-aarch64 -L root root/usr/bin/python3.11";
semicolons part several. Those that were not tried are named at the end.

The Pythons, with their headers, are looked for on PATH and in --pythons; those that are missing are named, and why
others do not serve, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PROCESSORS = ("x86_64", "aarch64")
GLIBC = (2, 28)


def main() -> int:
    """Make all that was asked for; 1 if something is missing or fails its check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--pythons", type=Path, nargs="*", default=[], help="interpreters that are not on PATH")
    parser.add_argument("--arm64-python", default="", metavar="X.Y=COMMAND;...", help="how to start ARM64 Pythons")
    parser.add_argument("--version", nargs="*", choices=VERSIONS, default=list(VERSIONS), dest="versions")
    parser.add_argument("--processor", nargs="*", choices=PROCESSORS, default=list(PROCESSORS), dest="processors")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", asked.out, ROOT)
    found, refused = pythons(asked.pythons)
    named = (one.partition("=") for one in asked.arm64_python.split(";") if one.strip())
    arm = {version.strip(): shlex.split(command) for version, _, command in named}
    missing = [version for version in asked.versions if version not in found]
    with tempfile.TemporaryDirectory(prefix="fastio-wheels-") as folder:
        for processor in asked.processors:
            tools = compilers(Path(folder) / processor, processor)
            for version in asked.versions:
                if version in found:
                    wheel(*found[version], version, processor, tools, asked.out, arm)
    run(sys.executable, "-m", "twine", "check", "--strict", *asked.out.glob("fastio-*"))
    if "aarch64" in asked.processors and (untried := [v for v in asked.versions if v in found and v not in arm]):
        print(f"built for aarch64 and not tried: {', '.join(untried)}; make wheels ARM64=... names a Python for each")
    for version in missing:
        print(f"no wheel for Python {version}: name one that has headers, make wheels PYTHONS=...", file=sys.stderr)
    for reason in refused if missing else []:
        print(reason, file=sys.stderr)
    return 1 if missing else 0


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command; CalledProcessError if it fails."""
    print("+", *command, flush=True)
    subprocess.run(
        [str(part) for part in command],
        check=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(environment or {})},
    )


def pythons(named: list[Path]) -> tuple[dict[str, tuple[Path, Path]], list[str]]:
    """Interpreters and their headers, by version: python3.X on PATH and those named; and why others do not serve."""
    found, refused = {}, []
    for candidate in [*(Path(path) for version in VERSIONS if (path := shutil.which(f"python{version}"))), *named]:
        code = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('include'))"
        asked = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        version, _, include = asked.stdout.strip().partition(" ")
        if asked.returncode:
            refused.append(f"{candidate} does not start: {(asked.stderr.strip() or 'no word').splitlines()[0]}")
        elif not (Path(include) / "Python.h").is_file():
            refused.append(f"{candidate} has no headers: {include}/Python.h is not there")
        else:
            found[version] = candidate, Path(include)
    return found, refused


def compilers(folder: Path, processor: str) -> dict[str, Path]:
    """Scripts that call zig as the compiler and the archiver of a processor."""
    folder.mkdir(parents=True)
    made = {}
    target = f"-target {processor}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    for name, words in {"cc": f"cc {target}", "c++": f"c++ {target}", "ar": "ar", "ranlib": "ranlib"}.items():
        made[name] = folder / name
        made[name].write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {words} "$@"\n')
        made[name].chmod(0o755)
    return made


def wheel(
    python: Path,
    headers: Path,
    version: str,
    processor: str,
    tools: dict[str, Path],
    out: Path,
    arm: Mapping[str, Sequence[str | Path]],
) -> None:
    """Build a wheel, have it checked and named, and try it."""
    ours = sysconfig.get_platform().partition("-")[2]
    defined = {"CMAKE_AR": tools["ar"], "CMAKE_RANLIB": tools["ranlib"]}
    environment = {"CC": str(tools["cc"]), "CXX": str(tools["c++"])}
    if processor != ours:
        suffix = f".cpython-{version.replace('.', '')}-{processor}-linux-gnu.so"
        environment |= {"_PYTHON_HOST_PLATFORM": f"linux-{processor}", "SETUPTOOLS_EXT_SUFFIX": suffix}
        defined |= {"CMAKE_SYSTEM_NAME": Path("Linux"), "CMAKE_SYSTEM_PROCESSOR": Path(processor)}
    environment["CMAKE_ARGS"] = " ".join(f"-D{name}={value}" for name, value in defined.items())
    with tempfile.TemporaryDirectory() as folder:
        # Debian's pyconfig.h includes <x86_64-linux-gnu/python3.X/pyconfig.h>, and zig does not search /usr/include.
        if (debian := headers.parent / f"{ours}-linux-gnu").is_dir():
            (Path(folder) / "include").mkdir()
            (Path(folder) / "include" / f"{processor}-linux-gnu").symlink_to(debian.resolve())
            environment["CXXFLAGS"] = f"-idirafter {folder}/include"
        pip = (sys.executable, "-m", "pip", "--python", python)
        # One folder for all Pythons: what knows nothing of Python is compiled once.
        build = f"--config-setting=build-dir={ROOT}/build/wheels/{processor}"
        run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, build, ROOT, environment=environment)
        (built,) = Path(folder).glob("*.whl")
        # Its --plat, which would name the glibc, takes the processor of this machine only.
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", Path(folder) / "named", built)
        (named,) = (Path(folder) / "named").glob("*.whl")
        glibcs = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)", named.name)]
        if not glibcs or max(glibcs) > GLIBC or not named.stem.endswith(processor):
            raise RuntimeError(f"auditwheel named the wheel {named.name}; expected {processor}, glibc {GLIBC} at most")
        if processor == ours:
            smoke([python], named)
        elif version in arm:
            smoke(arm[version], named)
        shutil.copy(named, out)


# Without torch, which is not there for every Python: the native part alone.
SMOKE = """
import os, sys, zlib
sys.path.insert(0, sys.argv[1])
import _native
data = bytes(range(256)) * 4096
assert _native.crc32(data) == zlib.crc32(data)
assert _native.crc32_combine(zlib.crc32(data), zlib.crc32(b"rest"), 4) == zlib.crc32(data + b"rest")
if os.uname().machine == "x86_64" and " avx2 " in open("/proc/cpuinfo").read():
    assert "avx2" in _native.csr_kernels(), "the fast kernels are not used"
print("the native part works:", sys.version.split()[0], _native.crc32_kernel(), *_native.csr_kernels())
"""


def smoke(python: Sequence[str | Path], built: Path) -> None:
    """Import the native part of a wheel by a Python that finds nothing on its path, and compute with it."""
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(built).extractall(folder)
        run(
            shutil.which(python[0]) or python[0],
            *python[1:],
            "-I",
            "-c",
            SMOKE,
            Path(folder) / "fastio",
            environment={"PATH": folder},
        )


if __name__ == "__main__":
    sys.exit(main())
