"""The distributions, the installed package, a light import, and the stub of the native part."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import fastio
import fastio._native as native
import fastio_bench.commands
from fastio_command.commands import cli

PACKAGED = {".cpp", ".css", ".csv", ".cu", ".hpp", ".jinja", ".json", ".py", ".pyi", ".typed"}
HEAVY = {"click", "cupy", "hypothesis", "kvikio", "matplotlib", "nvidia", "pytest", "rich", "safetensors", "statistics"}
HEAVY_ROOMS = (
    "fastio_bench",
    "fastio.cli",
    "fastio_command",
    "fastio.devices.simulated",
    "fastio.testing",
    *(f"fastio.backends.{tool}" for tool in ("dali", "gds", "pinned")),
)

NEWLY_IMPORTED = """
import sys, torch
before = set(sys.modules)
import fastio
print(*sorted(set(sys.modules) - before))
"""
ANSWERED = """
import sys, {package} as package
for words in {arguments}:
    sys.argv[1:] = words
    try:
        package.main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
    assert "click" in sys.modules
    assert not {{"torch", "numpy", "fastio"}} & set(sys.modules), words
"""
SUBCOMMANDS = {
    "fastio_command": [("dictionaries", "tune"), *((name,) for name in sorted(cli.commands))],
    "fastio_bench": [(name,) for name in fastio_bench.commands.SUBCOMMANDS],
}
SAVE_AND_LOAD = """
import fastio, fastio._native, torch
print(fastio.__file__, fastio._native.__file__)
fastio.save({"weight": torch.arange(5000)}, "checkpoint.pt")
assert torch.equal(torch.load("checkpoint.pt")["weight"], torch.arange(5000))
assert torch.equal(fastio.load("checkpoint.pt")["weight"], torch.arange(5000))
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def failed(*command: str | Path, cwd: Path) -> str:
    """What a command that must fail prints on stderr."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


def package_files(root: Path) -> set[str]:
    """The files of the packages in the source tree ``root``, by their installed names."""
    packages = [root / name for name in ("fastio", "fastio_bench", "fastio_command")]
    found = (path for package in packages for path in package.rglob("*") if path.suffix in PACKAGED)
    return {path.relative_to(root).as_posix() for path in found}


@pytest.fixture(scope="module")
def sdist(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a clean copy."""
    copy = tmp_path_factory.mktemp("copy") / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(repository, copy, symlinks=True, ignore=ignored)
    build = (sys.executable, "-m", "build", "--no-isolation", "--sdist")
    run(*build, "--outdir", copy / "dist", copy, cwd=copy.parent)
    (made,) = (copy / "dist").glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(sdist, folder, filter="data")
    (source,) = folder.iterdir()
    quick = "--config-setting=cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0"  # half of the compiler's time
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", quick)
    run(*build, "--outdir", folder, source, cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


def test_sdist_holds_every_source_once(sdist: Path, repository: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
        links = {member.name.partition("/")[2] for member in archive if member.issym() or member.islnk()}
    native_sources = {path.relative_to(repository).as_posix() for path in (repository / "native").rglob("*.?pp")}
    assert package_files(repository) | native_sources <= names | links
    # The kernels' source is compiled at run time; the command and its tests replay the recorded trace.
    assert links == {"fastio/devices/crc32.cu", "fastio/offload/codecs/csr.cu", "tests/data/recorded.csv"}
    assert {"native/checksum/crc32.cu", "native/codec/csr.cu", "fastio_bench/tools/recorded.csv"} <= names
    assert not [name for name in names if name.split("/")[0] in {"backends", "bench", "dicts"}]


@pytest.mark.nightly
def test_wheel_holds_the_package_and_nothing_else(wheel: Path, repository: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    extension = f"fastio/{Path(native.__file__).name}"
    assert names == package_files(repository) | {extension}
    assert {"fastio/py.typed", "fastio/_native.pyi", "fastio/backends/__init__.py"} <= names
    assert [name for name in names if name.startswith("fastio/dicts/") and name.endswith(".json")]


@pytest.mark.nightly
def test_wheel_from_the_sdist_works_without_the_source_tree(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path / "site", wheel, cwd=tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n{SAVE_AND_LOAD}"
    loaded = run(sys.executable, "-c", code, cwd=tmp_path).split()
    assert [Path(path).is_relative_to(tmp_path / "site") for path in loaded] == [True, True]


def test_installed_package_has_all_files_and_metadata(repository: Path) -> None:
    home = Path(fastio.__file__).parent.parent
    assert [name for name in sorted(package_files(repository)) if not (home / name).is_file()] == []
    installed = distribution("fastio")
    assert installed.metadata["License-Expression"] == "Apache-2.0"
    entries = {(entry.group, entry.name, entry.value) for entry in installed.entry_points}
    assert entries == {
        ("console_scripts", "fastio", "fastio_command:main"),
        ("console_scripts", "fastio-bench", "fastio_bench:main"),
        ("sglang.srt.plugins", "fastio", "fastio.integrations.sglang:register"),
        ("vllm.general_plugins", "fastio", "fastio.integrations.vllm:register"),
    }


def test_import_loads_no_heavy_modules(tmp_path: Path) -> None:
    modules = run(sys.executable, "-c", NEWLY_IMPORTED, cwd=tmp_path).split()
    assert "fastio" in modules
    assert [m for m in modules if m.split(".")[0] in HEAVY or m.startswith(HEAVY_ROOMS)] == []


def test_import_at_the_root_of_a_clone_says_what_to_do(repository: Path, tmp_path: Path) -> None:
    """The source tree has no native part. A copy stands for the clone, which may have been built in place."""
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__", "_native*.so")
    shutil.copytree(repository / "fastio", clone / "fastio", symlinks=True, ignore=ignored)
    said = failed(sys.executable, "-c", "import fastio", cwd=clone)
    assert f"ImportError: this fastio ({clone / 'fastio'}) has no native part for Python" in said
    (clone / "native").mkdir()
    (clone / "native" / "CMakeLists.txt").touch()
    said = failed(sys.executable, "-c", "import fastio", cwd=clone)
    assert f"ImportError: this fastio is the source tree ({clone / 'fastio'})" in said
    assert f"run `pip install {clone}` once, then start Python in another folder than {clone}" in said
    assert "partially initialized" not in said
    assert "ModuleNotFoundError" not in said


@pytest.mark.parametrize("package", SUBCOMMANDS)
def test_help_imports_no_torch(package: str, tmp_path: Path) -> None:
    """``--help`` of the commands and of each subcommand, and ``--version``: torch takes seconds to import."""
    arguments = [["--version"], ["--help"], *([*name, "--help"] for name in SUBCOMMANDS[package])]
    said = run(sys.executable, "-c", ANSWERED.format(package=package, arguments=arguments), cwd=tmp_path)
    assert said.count("Usage: ") == len(arguments) - 1


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def stubbed(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """A stub's functions, classes and annotated values, by name."""
    found: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = statement
    return found


def native_arguments(function: object) -> list[str]:
    """The argument names of a nanobind function, from its own signature: ``def f(a: int, b: int = \\0) -> int``."""
    signature = function.__nb_signature__[0][0]  # type: ignore[attr-defined]
    inside = re.fullmatch(r"def \w+\((.*)\) -> .*", signature, re.DOTALL)
    assert inside, signature
    parsed = ast.parse(f"def f({inside[1].replace(chr(92), '')}): ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    return [argument.arg for argument in (*parsed.args.posonlyargs, *parsed.args.args, *parsed.args.kwonlyargs)]


def test_stub_matches_the_native_module() -> None:
    stub = stubbed(ast.parse((Path(fastio.__file__).parent / "_native.pyi").read_text()).body)
    assert public(list(stub)) == public(dir(native))
    for name, statement in stub.items():
        actual = getattr(native, name)
        if isinstance(statement, ast.ClassDef):
            assert public(list(stubbed(statement.body))) == public(dir(actual)), name
        elif isinstance(statement, ast.FunctionDef):
            expected = [argument.arg for argument in (*statement.args.posonlyargs, *statement.args.args)]
            assert native_arguments(actual) == expected, name


def test_no_named_tuple_has_another_base(repository: Path) -> None:
    """Python 3.10 cannot import such a class: `import fastio` failed there."""
    for path in (path for name in ("fastio", "fastio_command") for path in (repository / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and len(node.bases) > 1:
                assert "NamedTuple" not in map(ast.unparse, node.bases), f"{path}:{node.lineno}"
