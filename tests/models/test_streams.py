"""A stream reads two windows at once: tensors come in file order, and errors at their turn, whichever ends first."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from accelerators import DEVICE
from fastio.backends.posix import PosixTransport
from fastio.transports import registry
from fastio.transports.registry import Tool
from fastio.transports.transport import ReadRequest, TransportResult

MIB = 1 << 20


class OutOfOrder(PosixTransport):
    """Reads the second window of a file only after the third one, and fails it as told."""

    name = "posix"

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.began: list[int] = []
        self.third = threading.Event()
        self.third_may_end = threading.Event()
        self.third_may_end.set()
        self.were_beside = False
        self._error = error

    def read(self, request: ReadRequest) -> TransportResult:
        self.began.append(request.extents[0].offset)
        number = len(self.began)
        if number == 2:
            self.were_beside = self.third.wait(20)
            if self._error is not None:
                raise self._error
        result = super().read(request)
        if number == 3:
            assert self.third_may_end.wait(300)
            self.third.set()
        return result


def save(path: Path, count: int = 12) -> dict[str, torch.Tensor]:
    """Tensors of 1 MiB."""
    tensors = {f"{number:02d}": torch.randn(MIB // 4) for number in range(count)}
    fastio.save_file(tensors, path)
    return tensors


def damage(path: Path, tensor: torch.Tensor) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(tensor.numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)


def take(stream: Iterator[tuple[str, torch.Tensor]], expected: dict[str, torch.Tensor], seen: list[str]) -> None:
    for name, tensor in stream:
        assert torch.equal(tensor.cpu(), expected[name])
        seen.append(name)


def use(monkeypatch: pytest.MonkeyPatch, transport: OutOfOrder) -> OutOfOrder:
    monkeypatch.setitem(registry._tools, "posix", Tool("posix", transport))
    return transport


def test_a_window_that_ends_late_delays_those_behind_it_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, transport = save(tmp_path / "a"), use(monkeypatch, OutOfOrder())
    transport.third_may_end.clear()
    with fastio.safe_open(tmp_path / "a", policy="posix") as file:
        stream = file.tensors("8MiB")  # windows of 2 MiB
        first = [next(stream) for _ in range(2)]  # the second window waits for the third
        transport.third_may_end.set()
        found = [*first, *stream]
    assert transport.were_beside
    assert [name for name, _ in found] == list(tensors)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in found)


@pytest.mark.parametrize("error", [fastio.TransferError(5, "read", "a", 0), fastio.CorruptFileError("a", None, "cut")])
def test_a_window_that_fails_is_read_again_at_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tensors, transport = save(tmp_path / "a"), use(monkeypatch, OutOfOrder(error))
    with fastio.safe_open(tmp_path / "a", policy="posix") as file:
        found = list(file.tensors("8MiB"))
    assert [name for name, _ in found] == list(tensors)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in found)
    assert len(transport.began) == 6 + 2  # both tensors of the window


def test_damage_is_an_error_at_its_turn_although_later_windows_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, transport = save(tmp_path / "a"), use(monkeypatch, OutOfOrder())
    damage(tmp_path / "a", tensors["03"])
    seen: list[str] = []
    with fastio.safe_open(tmp_path / "a", policy="posix") as file:
        with pytest.raises(fastio.ChecksumError, match="'03'"):
            take(file.tensors("8MiB"), tensors, seen)
        assert transport.were_beside
        assert torch.equal(file.get_tensor("04"), tensors["04"])
    assert seen == ["00", "01", "02"]


def test_an_error_in_the_loop_ends_the_reads(tmp_path: Path) -> None:
    save(tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file:
        with fastio.record() as transfers, pytest.raises(AssertionError):
            take(file.tensors("1MiB"), {"00": torch.zeros(MIB // 4)}, [])
        assert len(transfers) < 12
        assert len(list(file.tensors())) == 12


def test_several_streams_at_once(tmp_path: Path) -> None:
    tensors = save(tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file:
        for one, other in zip(file.tensors("2MiB"), file.tensors("8MiB"), strict=True):
            assert one[0] == other[0]
            assert one[1].data_ptr() != other[1].data_ptr()
            assert torch.equal(one[1], tensors[one[0]])
            assert torch.equal(other[1], tensors[one[0]])


def test_a_forked_child_and_its_parent_go_on_with_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, transport = save(tmp_path / "a"), use(monkeypatch, OutOfOrder())
    with fastio.safe_open(tmp_path / "a", policy="posix") as file:
        stream = file.tensors("4MiB")
        next(stream)
        transport.third.clear()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                transport.third.set()
                rest = {name: tensor.numpy() for name, tensor in stream}  # numpy: torch's threads do not survive a fork
                status = 0 if all((rest[name] == tensors[name].numpy()).all() for name in list(tensors)[1:]) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        transport.third.set()
        assert [name for name, _ in stream] == list(tensors)[1:]


def test_ten_thousand_small_tensors(tmp_path: Path) -> None:
    tensors = {f"{number:05d}": torch.full((number % 9, 2), number) for number in range(9_985)}
    fastio.save_file(tensors, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file, fastio.record() as transfers:
        found = dict(file.tensors())
    assert found.keys() == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in found.items())
    assert len(transfers) == 1


def test_a_stream_teaches_dictionaries_nothing(tmp_path: Path) -> None:
    """Its transfers share the machine: the times are not those of one."""
    save(tmp_path / "a")
    asked: list[int] = []

    class Asked(fastio.dicts.RDic):
        def choose(self, context: Any, nbytes: int, candidates: Any) -> Any:
            asked.append(nbytes)
            return super().choose(context, nbytes, candidates)

        def observe(self, *arguments: Any) -> None:
            raise AssertionError

    with fastio.safe_open(tmp_path / "a", policy=Asked()) as file:
        assert len(list(file.tensors("4MiB"))) == 12
    assert asked == [(tmp_path / "a").stat().st_size]


def test_a_tool_that_cannot_read_is_avoided_by_later_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(PosixTransport):
        def read(self, request: ReadRequest) -> TransportResult:
            raise fastio.RefusedError("not today")

    tensors = save(tmp_path / "a")
    monkeypatch.setitem(registry._tools, "posix", Tool("posix", Refusing()))
    with fastio.safe_open(tmp_path / "a", policy=fastio.dicts.RDic()) as file, fastio.record() as transfers:
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in file.tensors("4MiB"))
    refused = [transfer for transfer in transfers if any("not today" in note for note in transfer.fallbacks)]
    assert len(refused) <= 2
    assert "posix" not in {transfer.tool for transfer in transfers}


@pytest.mark.gpu
@pytest.mark.parametrize("read_ahead", [None, "4MiB", 0])
def test_streams_to_a_device(tmp_path: Path, read_ahead: Any) -> None:
    tensors = save(tmp_path / "a") | {"small": torch.arange(7)}
    fastio.save_file(tensors, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a", device=DEVICE) as file:
        found = list(file.tensors(read_ahead))
        assert [name for name, _ in found] == file.offset_keys()
    assert all(tensor.device.type == DEVICE and torch.equal(tensor.cpu(), tensors[name]) for name, tensor in found)
    damage(tmp_path / "a", tensors["07"])
    seen: list[str] = []
    with fastio.safe_open(tmp_path / "a", device=DEVICE) as file, pytest.raises(fastio.ChecksumError, match="'07'"):
        take(file.tensors(read_ahead), tensors, seen)
    assert seen[-1] == "06"


@pytest.mark.simulated
def test_a_stream_to_a_device_takes_a_share_of_its_free_memory(tmp_path: Path) -> None:
    import simulated

    save(tmp_path / "a", 40)
    device = torch.device("simulated", 0)
    simulated.configure(0, memory_limit=torch.simulated.memory_reserved(0) + 64 * MIB)  # type: ignore[attr-defined]
    with fastio.safe_open(tmp_path / "a", device=device) as file, fastio.record() as transfers:
        assert len(list(file.tensors())) == 40
    assert max(transfer.nbytes for transfer in transfers) <= 2 * MIB
