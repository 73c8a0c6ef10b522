"""The items: four commands of at most ten minutes each, in the order of what they tell."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from fastio_bench.gpu.runner import Item

_PYTHON = (sys.executable, "-W", "default")
TRUTH_TESTS = (
    "offload/test_codec.py",
    "transports/test_pinned.py",
    "transports/test_crc32_cuda.py",
    "transports/test_transports.py",
    "offload/test_device.py",
    "offload/test_recompute.py",
    "offload/test_two_streams.py",
    "models/test_devices.py",
    "models/test_load_dtype.py",
    "models/test_streams.py",
    "api/test_load_pinned.py",
    "checkpoint/test_restore_into.py",
    "formats/test_pickler.py",
    "transports/test_no_gpu_queries.py",
    "transports/test_dali.py",
    "volumes/test_save_and_load.py",
    "volumes/test_namespaces.py",
    "bench/gpu/test_scripts.py",
)
"""The files of tests that the first command runs."""
LATER_TESTS = ("hybrid/test_device.py", "transports/test_gds.py", "nvme/test_gpu_memory.py")
"""Those that the second command runs."""
HOST_LAYERS = ("linear", "linear-bf16", "convolution", "embedding", "lstm")
HYBRID_MODELS = ("mlp", "transformer", "cnn", "lstm")


@dataclass(frozen=True)
class Command:
    """Items that run one after another, for at most ``seconds`` in all."""

    seconds: float
    items: tuple[Item, ...]


def commands(root: Path) -> dict[str, Command]:
    """The commands by name. ``root`` is the source tree, where the tests are."""
    return {
        "1": Command(540, _truth(root)),
        "2": Command(480, _hybrid_and_gds(root)),
        "3": Command(540, _offload()),
        "4": Command(480, _state()),
        "more": Command(540, _more(root)),
    }


def _truth(root: Path) -> tuple[Item, ...]:
    # Without torch's cache each tensor is an allocation, whose ends the checker knows.
    memcheck = ("env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", "compute-sanitizer", "--error-exitcode", "9")
    return (
        Item("nvidia-smi", ("nvidia-smi",), 20),
        _script("machine", "machine"),
        _script("pinning", "pinning"),
        _script("host-views", "host_views"),
        *(_script(f"host-{layer}", "host_weights", "--layer", layer) for layer in HOST_LAYERS),
        _script("forking", "forking"),
        *(_tests(f"tests/{path}", root, path) for path in TRUTH_TESTS),
        Item("memcheck", (*memcheck, *_module("gpu.csr", "--elements", "1000")), 90),
    )


def _hybrid_and_gds(root: Path) -> tuple[Item, ...]:
    hybrid, gds, window = LATER_TESTS
    save_load = _module("gpu.save_load", "--policy", "gds")
    return (
        *(_tests(f"hybrid-{model}", root, hybrid, f"losses_on_a_gpu and {model}") for model in HYBRID_MODELS),
        _tests("hybrid-others", root, hybrid, "not losses_on_a_gpu"),
        Item("gds", ("env", "KVIKIO_NTHREADS=16", *save_load)),
        _script("pinned", "save_load", "--policy", "pinned"),
        _tests(f"tests/{gds}", root, gds),
        _script("peer-window", "peer_window"),
        _tests(f"tests/{window}", root, window),
    )


def _offload() -> tuple[Item, ...]:
    wide = ("--width", "4096", "--layers", "8")  # transfers that fit beside the compute, at about 36 GB/s
    return (
        _bench("offload-wide", "offload.gpu_offload", *wide, "--rounds", "3", seconds=180),
        _bench("offload-narrow", "offload.gpu_offload", "--rounds", "3", seconds=150),
        _script("codecs", "codecs"),
        _script("trace", "trace"),
        _script("first-pass-warm", "first_pass"),
        _script("first-pass-cold", "first_pass", "--plain-steps", "0"),
    )


def _state() -> tuple[Item, ...]:
    return (
        _bench("hybrid-quick", "cli", "hybrid", "--quick", seconds=120),
        _script("checkpoint", "checkpoint", seconds=120),
        _bench("hybrid", "cli", "hybrid", seconds=300),
        _bench("io", "cli", "io", "--quick", "--device", "cuda", seconds=180),
    )


def _more(root: Path) -> tuple[Item, ...]:
    no_device = "not gpu and not cuda and not simulated"
    cpu_suite = (
        *_pytest(root, root / "tests", no_device),
        "--continue-on-collection-errors",
        "--numprocesses=8",
        "--dist=loadfile",
    )
    return (
        _bench("doctor", "cli", "doctor", "--quick", seconds=60),
        _bench("peers", "cli", "peers", "--quick", seconds=180),
        Item("cpu-suite", cpu_suite, 540),
    )


def _script(name: str, module: str, *arguments: str, seconds: float = 60) -> Item:
    return Item(name, _module(f"gpu.{module}", *arguments), seconds)


def _bench(name: str, module: str, *arguments: str, seconds: float) -> Item:
    """A benchmark that writes its results to a folder."""
    return Item(name, _module(module, *arguments, "--out", "out"), seconds)


def _module(module: str, *arguments: str) -> tuple[str, ...]:
    return (*_PYTHON, "-m", f"fastio_bench.{module}", *arguments)


def _tests(name: str, root: Path, path: str, keyword: str = "") -> Item:
    """A file of tests that need a GPU, or those of them that a pytest keyword selects."""
    chosen = ("-k", keyword) if keyword else ()
    return Item(name, (*_pytest(root, root / "tests" / path, "(gpu or cuda) and not simulated"), *chosen), 120)


def _pytest(root: Path, path: Path, marks: str) -> tuple[str, ...]:
    settings = ("-c", str(root / "pyproject.toml"), f"--rootdir={root}", "-p", "no:cacheprovider", "-W", "default")
    return (*_PYTHON, "-m", "pytest", *settings, "--tb=short", "--durations=5", "-m", marks, str(path))
