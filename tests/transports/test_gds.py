"""The ``gds`` transport, over kvikio's GPUDirect Storage.

It is tested in three ways: on a GPU, or on the simulated accelerator with a stand-in for kvikio; over the real kvikio
in its compatibility mode, with a fake of NVIDIA's driver; and over a fake of kvikio that fails on demand.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from accelerators import DEVICE
from fastio.backends.gds import GdsTransport
from fastio.devices import cuda_extras
from fastio.errors import RefusedError, ToolUnavailableError, TransferError
from fastio.runtime.installation import pip_install
from fastio.testing import TransportContract
from fastio.testing.layouts import MIB, PAGE, Layout, Run
from fastio.transports import registry
from fastio.transports.transport import ReadRequest, WriteRequest

has_kvikio = importlib.util.find_spec("kvikio") is not None
may_skip = os.environ.get("CI", "").lower() not in {"1", "true"}


@pytest.mark.gpu
@pytest.mark.usefixtures("kvikio")
class TestGds(TransportContract):
    make = GdsTransport
    device = DEVICE


@pytest.mark.gpu
@pytest.mark.usefixtures("kvikio")
class TestGdsForAnySize(TestGds):
    """With all transfers by cuFile, also those of parts of pages."""

    @pytest.fixture(autouse=True)
    def threshold(self, kvikio: Any) -> Iterator[None]:
        with importlib.import_module("kvikio.defaults").set("gds_threshold", 0):
            yield


@pytest.mark.gpu
@pytest.mark.usefixtures("kvikio")
def test_route_follows_kvikios_mode(tmp_path: Path) -> None:
    defaults, driver = (importlib.import_module(f"kvikio.{name}") for name in ("defaults", "cufile_driver"))
    bounced = defaults.is_compat_mode_preferred() or not driver.properties.is_gds_available
    layout = Layout([Run(0, 4 * MIB)])
    extents, _ = layout.place(DEVICE, layout.noise(layout.size))
    with (tmp_path / "file").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, layout.size)
        moved = GdsTransport().write(WriteRequest(str(tmp_path / "file"), file.fileno(), layout.size, extents))
    assert moved.route == ("bounce" if bounced else "gds")
    assert bool(moved.notes) == bounced


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_tool_is_unavailable_with_a_cure() -> None:
    with pytest.raises(ToolUnavailableError) as caught:
        registry.get("gds")
    assert "CUDA" in caught.value.reason
    assert caught.value.cure


def test_without_kvikio_the_tool_names_the_package_to_install() -> None:
    """Runs a Python that cannot import kvikio."""
    program = (
        "import sys; sys.modules['kvikio'] = None; from fastio.backends.gds import GdsTransport\n"
        "try: GdsTransport(device='cpu')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("ToolUnavailableError")
    assert "kvikio does not import" in said
    assert cuda_extras.cure("gds") in said


@pytest.mark.parametrize(
    ("cuda", "named"),
    [
        ("12.8", pip_install("gds")),
        ("13.0", pip_install("gds13")),
        (None, f"{pip_install('gds')} for CUDA 12, {pip_install('gds13')} for CUDA 13"),
    ],
)
def test_cure_names_the_extra_for_the_cuda_of_torch(
    monkeypatch: pytest.MonkeyPatch, repository: Path, cuda: str | None, named: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(ToolUnavailableError) as caught:
        GdsTransport(device="cpu")
    assert caught.value.cure == named
    declared = (repository / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in declared for extra in ("gds", "gds13", "codec", "codec13"))


@pytest.mark.skipif(not has_kvikio and may_skip, reason="kvikio is not installed")
def test_contract_holds_over_the_real_kvikio_in_host_memory(tmp_path: Path, repository: Path, compiler: str) -> None:
    tests = repository / "tests" / "support" / "kvikio_on_host"
    library = tmp_path / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library.name}"]
    subprocess.run([compiler, *flags, "-o", library, tests / "driver.c"], check=True)
    settings = {"LD_LIBRARY_PATH": str(tmp_path), "KVIKIO_COMPAT_MODE": "ON", "KVIKIO_NTHREADS": "4"}
    ran = subprocess.run(
        [
            *(sys.executable, "-c", "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"),
            *("-c", repository / "pyproject.toml", "-p", "no:cacheprovider", tests / "contract_of_gds.py"),
        ],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


class FakeKvikio:
    """A fake of kvikio that moves host memory with plain system calls, and misbehaves on demand.

    ``limit`` is the most bytes that one transfer moves; every transfer raises ``error``, if set.
    """

    def __init__(self) -> None:
        self.limit = 1 << 40
        self.error: Exception | None = None
        self.compatible = True
        self.is_gds_available = True
        self.mode = "AUTO"
        self.threshold = 0
        self.threads = 1
        self.opened_in: list[str] = []
        self.transfers: list[tuple[str, int, int]] = []
        self.under_way: list[range] = []  # the pages of each transfer
        self.most_under_way = 0
        self.shared_pages: list[range] = []

    def modules(self) -> dict[str, ModuleType]:
        stand_in = self

        class File:
            def __init__(self, path: str, flags: str) -> None:
                stand_in.opened_in.append(stand_in.mode)
                self._fd = os.open(path, {"r": os.O_RDONLY, "r+": os.O_RDWR}[flags])

            def close(self) -> None:
                assert not stand_in.under_way, "closed while transfers are under way"
                os.close(self._fd)

            def pread(self, memory: memoryview, size: int, offset: int, task_size: int) -> Any:
                assert task_size >= size  # in one task
                return self._start("read", memory[: min(size, stand_in.limit)], offset)

            def pwrite(self, memory: memoryview, size: int, offset: int, task_size: int) -> Any:
                assert task_size >= size
                return self._start("write", memory[: min(size, stand_in.limit)], offset)

            def _start(self, operation: str, memory: memoryview, offset: int) -> Any:
                stand_in.transfers.append((operation, offset, len(memory)))
                pages = range(offset // PAGE, -(-(offset + len(memory)) // PAGE))
                stand_in.shared_pages += [
                    other for other in stand_in.under_way if other.start < pages.stop and pages.start < other.stop
                ]
                stand_in.under_way.append(pages)
                stand_in.most_under_way = max(stand_in.most_under_way, len(stand_in.under_way))

                def get() -> int:
                    stand_in.under_way.remove(pages)
                    if stand_in.error is not None:
                        raise stand_in.error
                    if operation == "read":
                        return os.preadv(self._fd, [memory], offset)
                    return os.pwrite(self._fd, memory, offset)

                return SimpleNamespace(get=get)

        class Setting:
            def __init__(self, name: str, value: Any) -> None:
                assert name in ("compat_mode", "num_threads")
                if name == "num_threads":
                    stand_in.threads = value
                else:
                    stand_in.mode = value

            def __enter__(self) -> None:
                pass

            def __exit__(self, *_: object) -> None:
                stand_in.mode = "AUTO"

        kvikio, defaults, driver = (ModuleType(n) for n in ("kvikio", "kvikio.defaults", "kvikio.cufile_driver"))
        vars(kvikio).update(CuFile=File, CompatMode=SimpleNamespace(OFF="OFF"))
        vars(defaults).update(set=Setting, is_compat_mode_preferred=lambda: stand_in.compatible)
        values = {"gds_threshold": "threshold", "num_threads": "threads"}
        vars(defaults)["get"] = lambda name: getattr(stand_in, values[name])
        vars(driver).update(properties=stand_in)
        return {module.__name__: module for module in (kvikio, defaults, driver)}


LAYOUT = Layout([Run(0, 3 * MIB + 5, misalignment=1), Run(3, 100), Run(50, 2 * MIB, PAGE), Run(0, 7000), Run(0, 9)])


class TestOverFakeKvikio:
    """The transport's calls of kvikio, and its handling of the results; without kvikio or a GPU."""

    @pytest.fixture
    def kvikio(self, monkeypatch: pytest.MonkeyPatch) -> FakeKvikio:
        stand_in = FakeKvikio()
        for name, module in stand_in.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        return stand_in

    @pytest.fixture
    def transport(self, kvikio: FakeKvikio) -> GdsTransport:
        return GdsTransport(device="cpu")

    @pytest.fixture
    def file(self, tmp_path: Path) -> Iterator[tuple[str, int]]:
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, LAYOUT.size)
        yield str(tmp_path / "file"), fd
        os.close(fd)

    def test_short_transfers_are_completed(
        self, transport: GdsTransport, kvikio: FakeKvikio, file: tuple[str, int]
    ) -> None:
        kvikio.limit = 500_000
        extents, memories = LAYOUT.place("cpu", LAYOUT.noise(LAYOUT.size))
        request = WriteRequest(*file, LAYOUT.size, extents)
        transport.write(request)
        assert Path(file[0]).read_bytes() == LAYOUT.image(extents, memories).tobytes()
        assert request.control.done == LAYOUT.total
        targets, filled = LAYOUT.place("cpu")
        transport.read(ReadRequest(*file, LAYOUT.size, targets))
        assert all(np.array_equal(a.get(), b.get()) for a, b in zip(memories, filled, strict=True))
        assert sum(operation == "write" for operation, _, _ in kvikio.transfers) > 10

    def test_no_two_writes_of_one_page_are_under_way(
        self, transport: GdsTransport, kvikio: FakeKvikio, file: tuple[str, int]
    ) -> None:
        kvikio.limit = 500_000
        extents, _ = LAYOUT.place("cpu", LAYOUT.noise(LAYOUT.size))
        transport.write(WriteRequest(*file, LAYOUT.size, extents))
        assert kvikio.most_under_way > 2
        assert not kvikio.shared_pages

    @pytest.mark.parametrize("operation", ["read", "write"])
    def test_a_transfer_of_zero_bytes_is_a_transfer_error(
        self, transport: GdsTransport, kvikio: FakeKvikio, file: tuple[str, int], operation: str
    ) -> None:
        kvikio.limit = 0
        with pytest.raises(TransferError) as caught:
            self.move(transport, file, operation)
        assert file[0] in str(caught.value)
        assert not kvikio.under_way

    @pytest.mark.parametrize("operation", ["read", "write"])
    def test_an_error_of_kvikio_becomes_a_refused_error_that_quotes_it(
        self, transport: GdsTransport, kvikio: FakeKvikio, file: tuple[str, int], operation: str
    ) -> None:
        kvikio.error = RuntimeError("cuFile error: 5030")
        with pytest.raises(RefusedError, match="cuFile error: 5030") as caught:
            self.move(transport, file, operation)
        assert file[0] in str(caught.value)
        assert not kvikio.under_way

    @pytest.mark.parametrize(
        ("compatible", "driver", "route", "mode"),
        [(True, True, "bounce", "AUTO"), (False, False, "bounce", "AUTO"), (False, True, "gds", "OFF")],
    )
    def test_reports_the_route_and_forbids_silent_fallback(
        self,
        transport: GdsTransport,
        kvikio: FakeKvikio,
        file: tuple[str, int],
        compatible: bool,
        driver: bool,
        route: str,
        mode: str,
    ) -> None:
        kvikio.compatible, kvikio.is_gds_available = compatible, driver
        moved = transport.read(ReadRequest(*file, LAYOUT.size, LAYOUT.place("cpu")[0]))
        assert moved.route == route
        assert bool(moved.notes) == (route == "bounce")
        assert kvikio.opened_in == [mode]
        assert kvikio.mode == "AUTO"

    @pytest.mark.parametrize("compatible", [True, False])
    def test_is_no_direct_tool_where_kvikio_copies_through_host_memory(
        self, kvikio: FakeKvikio, compatible: bool
    ) -> None:
        kvikio.compatible = compatible
        assert GdsTransport("cpu").capabilities.direct == (not compatible)

    @pytest.mark.parametrize(
        ("threshold", "route", "note"), [(0, "gds", ""), (MIB, "gds", "7109 bytes"), (16 * MIB, "bounce", "5249994")]
    )
    def test_notes_parts_below_kvikios_gds_threshold(
        self,
        transport: GdsTransport,
        kvikio: FakeKvikio,
        file: tuple[str, int],
        threshold: int,
        route: str,
        note: str,
    ) -> None:
        kvikio.compatible, kvikio.threshold = False, threshold
        moved = transport.read(ReadRequest(*file, LAYOUT.size, LAYOUT.place("cpu")[0]))
        assert moved.route == route
        assert "".join(moved.notes)[: len(note)] == note
        assert bool(moved.notes) == bool(note)

    @pytest.mark.parametrize(("variable", "before", "after"), [(None, 1, 8), (None, 3, 3), ("1", 1, 1), ("32", 32, 32)])
    def test_gives_kvikio_threads_unless_the_user_did(
        self, kvikio: FakeKvikio, monkeypatch: pytest.MonkeyPatch, variable: str | None, before: int, after: int
    ) -> None:
        monkeypatch.delenv("KVIKIO_NTHREADS", raising=False)
        if variable is not None:
            monkeypatch.setenv("KVIKIO_NTHREADS", variable)
        kvikio.threads = before
        GdsTransport(device="cpu")
        assert kvikio.threads == after

    def test_cancelled_read_starts_no_transfer(
        self, transport: GdsTransport, kvikio: FakeKvikio, file: tuple[str, int]
    ) -> None:
        request = ReadRequest(*file, LAYOUT.size, LAYOUT.place("cpu")[0])
        request.control.cancel()
        with pytest.raises(RefusedError):
            transport.read(request)
        assert not kvikio.transfers

    def move(self, transport: GdsTransport, file: tuple[str, int], operation: str) -> None:
        if operation == "read":
            transport.read(ReadRequest(*file, LAYOUT.size, LAYOUT.place("cpu")[0]))
        else:
            extents, _ = LAYOUT.place("cpu", LAYOUT.noise(LAYOUT.size))
            transport.write(WriteRequest(*file, LAYOUT.size, extents))
