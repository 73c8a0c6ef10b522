"""Checksums of safetensors: what is written, what a load compares, and how copied checksums are told from damage."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import fastio
from fastio.engine import header_digests
from fastio.transports import registry
from fastio.transports.transport import WriteRequest
from objects import same, tensor_of

TOOLS = ["uring", "posix", "torch", "numpy", "memory"]
KEY = "fastio.checksums"


def some() -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randn(300, 400),
        "half": tensor_of(torch.bfloat16, 7),
        "none": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "columns": torch.randn(50, 60).t(),
        "": torch.ones(3),
        'a "quoted\\" ü': torch.arange(5),
        "zz": torch.randn(2000, 1000),
    }


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def stored(path: Path) -> dict[str, Any]:
    with safetensors.safe_open(path, "pt") as file:
        value: dict[str, Any] = json.loads(file.metadata()[KEY])
        return value


def flip(path: Path, name: str) -> None:
    """Change one byte of a tensor."""
    content = bytearray(path.read_bytes())
    length = 8 + int.from_bytes(content[:8], "little")
    begin, end = json.loads(content[8:length])[name]["data_offsets"]
    content[length + (begin + end) // 2] ^= 4
    path.write_bytes(content)


def check_stored(path: Path, tensors: dict[str, torch.Tensor], hashes: bool) -> None:
    value = stored(path)
    parts = [raw(tensors[name]) for name in sorted(tensors)]
    assert value["crc32"] == "".join(f"{zlib.crc32(part):08x}" for part in parts)
    assert value.get("sha256") == ("".join(hashlib.sha256(part).hexdigest() for part in parts) if hashes else None)


@pytest.mark.parametrize("hashes", [False, True])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_save_stores_the_checksums_of_its_bytes(tmp_path: Path, tool: str, hashes: bool) -> None:
    path, tensors = tmp_path / "a.safetensors", some()
    assert fastio.save(tensors, path, policy=tool, hashes=hashes).verified
    check_stored(path, tensors, hashes)
    loaded = safetensors.torch.load_file(path)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    with fastio.record() as transfers:
        loaded = fastio.load(path, policy=tool)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert [(one.tool, one.verified, one.fallbacks) for one in transfers] == [(tool, True, ())]
    stream = io.BytesIO()
    assert fastio.save(tensors, stream, format="safetensors", hashes=hashes).verified
    assert stream.getvalue() == path.read_bytes()


def test_only_the_header_differs_from_a_file_without(tmp_path: Path) -> None:
    tensors = some()
    fastio.save_file(tensors, tmp_path / "with")
    fastio.save_file(tensors, tmp_path / "without", checksums=False)
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "theirs")
    files = []
    for name in ("with", "without", "theirs"):
        content = (tmp_path / name).read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        files.append((list(header.items())[-len(tensors) :], content[start:], header.get("__metadata__")))
    assert files[0][:2] == files[1][:2] == files[2][:2]
    assert files[1][2] is files[2][2] is None
    assert files[0][2].keys() == {KEY, "format"}
    with pytest.raises(ValueError, match="hashes=True needs checksums=True"):
        fastio.save_file(tensors, tmp_path / "with", checksums=False, hashes=True)


def test_metadata_hides_the_key_and_a_save_replaces_it(tmp_path: Path) -> None:
    fastio.save_file(some(), tmp_path / "a", {"k": "v"})
    with safetensors.safe_open(tmp_path / "a", "pt") as file:
        copied = file.metadata()
    other = {"other": torch.ones(4)}
    fastio.save_file(other, tmp_path / "b", copied)
    check_stored(tmp_path / "b", other, False)
    fastio.save_file(other, tmp_path / "c", copied, checksums=False)
    for name in "abc":
        with fastio.safe_open(tmp_path / name) as ours, safetensors.safe_open(tmp_path / name, "pt") as theirs:
            assert ours.metadata() == {"k": "v"}
            assert (KEY in theirs.metadata()) == (name != "c")


@pytest.mark.parametrize("tool", TOOLS)
def test_each_load_finds_damage_and_names_the_tensor(tmp_path: Path, tool: str) -> None:
    path, tensors = tmp_path / "a.safetensors", some()
    fastio.save(tensors, path)
    flip(path, "half")

    def stream() -> Any:
        with fastio.safe_open(path, policy=tool) as file:
            return dict(file.tensors())

    def prefetched() -> Any:
        with fastio.safe_open(path, policy=tool) as file:
            file.prefetch(["half", "weight"])
            return file.get_tensor("half")

    def all_at_once() -> Any:
        with fastio.safe_open(path, policy=tool) as file:
            return file.get_tensors()

    def from_memory() -> Any:
        return fastio.load(io.BytesIO(path.read_bytes()))

    load = lambda: fastio.load(path, policy=tool)  # noqa: E731
    for read in (load, lambda: fastio.load_file(path), from_memory, stream, prefetched, all_at_once):
        with pytest.raises(fastio.ChecksumError, match=r"'half': its 14 bytes .* damaged after") as found:
            read()
        assert found.value.record == "half"
    assert not torch.equal(fastio.load(path, policy=tool, verify=False)["half"].view(torch.int16), tensors["half"])
    assert fastio.load_file(path, verify=False).keys() == tensors.keys()
    with pytest.raises(fastio.ChecksumError, match="half"):
        fastio.verify(path)


def test_other_tensors_and_parts_of_a_damaged_one_can_be_read(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", some()
    fastio.save(tensors, path)
    flip(path, "weight")
    with fastio.safe_open(path) as file, fastio.record() as transfers:
        file.prefetch(tensors)
        for name in tensors.keys() - {"weight"}:
            assert torch.equal(file.get_tensor(name), tensors[name])
        with pytest.raises(fastio.ChecksumError, match="weight"):
            file.get_tensor("weight")
        assert all(one.verified for one in transfers)
        del transfers[:]
        part = file.get_slice("weight")
        assert torch.equal(part[:3], tensors["weight"][:3])
        assert torch.equal(part[:, ::7][:3], tensors["weight"][:3, ::7])
        with pytest.raises(fastio.ChecksumError, match="weight"):
            part[:]
        with pytest.raises(fastio.ChecksumError, match="weight"):
            part[[0, 2]]
    assert len(transfers) == 2
    assert not any(one.verified for one in transfers)
    assert all("1 of 1 reads are of parts of tensors" in one.fallbacks[0] for one in transfers)
    with fastio.safe_open(path, verify=False) as file, fastio.record() as transfers:
        file.get_tensor("weight")
    assert [(one.verified, one.fallbacks) for one in transfers] == [(False, ())]


def test_a_transfer_of_tensors_and_parts_is_not_verified(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.randn(100, 10), "b": torch.randn(10)}, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file, fastio.record() as transfers:
        file.prefetch([("a", slice(0, 9)), "b"])
        file.get_tensor("b")
    assert [one.verified for one in transfers] == [False]
    assert "1 of 2 reads are of parts" in transfers[0].fallbacks[0]


class TestCopiedChecksums:
    """Another program copies the metadata of fastio's file into a new one."""

    def copied(self, tmp_path: Path, tensors: dict[str, torch.Tensor], hashes: bool = False) -> Path:
        fastio.save_file({"a": torch.ones(100), "b": torch.zeros(4, 5)}, tmp_path / "first", hashes=hashes)
        with safetensors.safe_open(tmp_path / "first", "pt") as file:
            safetensors.torch.save_file(tensors, tmp_path / "second", file.metadata())
        return tmp_path / "second"

    def test_same_tensors_are_verified(self, tmp_path: Path) -> None:
        path = self.copied(tmp_path, {"b": torch.zeros(4, 5), "a": torch.ones(100)}, hashes=True)
        with fastio.record() as transfers:
            fastio.load(path)
        assert transfers[0].verified
        assert fastio.verify(path).hashed

    @pytest.mark.parametrize(
        "tensors",
        [
            {"a": torch.ones(100)},
            {"a": torch.ones(100), "c": torch.zeros(4, 5)},
            {"a": torch.ones(100), "b": torch.zeros(5, 4)},
            {"a": torch.ones(100), "b": torch.zeros(4, 5, dtype=torch.int32)},
        ],
    )
    def test_other_tensors_are_told_from_damage(self, tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
        path = self.copied(tmp_path, tensors)
        for read in (fastio.load, fastio.load_file, fastio.safe_open, fastio.verify):
            with pytest.raises(fastio.ChecksumError, match=r"of other tensors.*another program.*fastio seal") as found:
                read(path)  # type: ignore[operator]
            assert found.value.record is None
        assert same(fastio.load(path, verify=False), tensors)

    def test_other_values_may_be_damage_or_not(self, tmp_path: Path) -> None:
        tensors = {"a": torch.ones(100), "b": torch.ones(4, 5)}
        path = self.copied(tmp_path, tensors)
        with pytest.raises(fastio.ChecksumError, match=r"'b'.*damaged, or another program changed.*fastio seal"):
            fastio.load(path)
        fastio.seal(path)
        with fastio.record() as transfers:
            assert same(fastio.load(path), tensors)
        assert transfers[0].verified

    @pytest.mark.parametrize(
        "value", ["", "{}", "[1]", '{"version":1}', '{"version":1,"table":"","crc32":3}', "[" * 9999]
    )
    def test_malformed_checksums_are_an_error(self, tmp_path: Path, value: str) -> None:
        safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "a", {KEY: value})
        with pytest.raises(fastio.ChecksumError, match=r"fastio's checksums.*fastio seal"):
            fastio.load(tmp_path / "a")
        assert fastio.load(tmp_path / "a", verify=False).keys() == {"a"}

    def test_a_newer_version_says_so(self, tmp_path: Path) -> None:
        safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "a", {KEY: '{"version":2}'})
        with pytest.raises(fastio.FormatError, match=r"version 2.*newer fastio"):
            fastio.load(tmp_path / "a")


class TestSidecar:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "theirs.safetensors"
        safetensors.torch.save_file({n: t.contiguous() for n, t in some().items()}, path)
        return path

    def test_loads_compare_with_it(self, path: Path) -> None:
        before = path.read_bytes()
        found = fastio.seal(path)
        assert path.read_bytes() == before
        assert found.sidecar == f"{path}.fastio-checksums.json"
        with fastio.record() as transfers:
            tensors = fastio.load(path)
            with fastio.safe_open(path) as file:
                file.get_tensor("weight")
            fastio.load(io.BytesIO(before))
            with path.open("rb") as stream:
                fastio.load(stream)
        assert [one.verified for one in transfers] == [True, True, False, False]
        assert "carries no checksums" in transfers[2].fallbacks[0]
        value = json.loads(Path(found.sidecar).read_text())
        assert value["crc32"] == {name: f"{zlib.crc32(raw(tensors[name])):08x}" for name in tensors}
        flip(path, "weight")
        for read in (fastio.load, fastio.load_file, fastio.verify, fastio.seal):
            with pytest.raises(fastio.ChecksumError, match=r"'weight'.*replaced after .*checksums.json.*fastio seal"):
                read(path)  # type: ignore[operator]

    def test_one_of_another_file_is_an_error(self, path: Path) -> None:
        sidecar = Path(fastio.seal(path, hashes=True).sidecar)
        first = fastio.load(path)
        safetensors.torch.save_file(first | {"more": torch.ones(3)}, path)
        with pytest.raises(fastio.ChecksumError, match=r"bytes, this one has .*fastio seal .*or remove"):
            fastio.load(path)
        safetensors.torch.save_file({n: t for n, t in first.items() if n != "zz"} | {"zy": first["zz"]}, path)
        with pytest.raises(fastio.ChecksumError, match="another header"):
            fastio.safe_open(path)
        assert len(fastio.load(path, verify=False)) == len(first)
        assert not fastio.seal(path).hashed
        assert fastio.verify(path).checksummed
        for text in ("", "[]", "{", '{"version": 1}', sidecar.read_text().replace('"half"', '"other"')):
            sidecar.write_text(text)
            with pytest.raises(fastio.ChecksumError, match=r"theirs.safetensors.*fastio seal"):
                fastio.load(path)
        sidecar.write_text('{"version": 3}')
        with pytest.raises(fastio.FormatError, match="version 3"):
            fastio.load(path)

    def test_a_save_removes_that_of_the_old_file(self, path: Path) -> None:
        sidecar = Path(fastio.seal(path).sidecar)
        result = fastio.save({"a": torch.ones(3)}, path, checksums=False)
        assert not sidecar.exists()
        assert f"{sidecar}, which had checksums of the old file, was removed" in result.fallbacks
        with fastio.record() as transfers:
            fastio.load(path)
        assert not transfers[0].verified

    def test_a_saved_model_leaves_no_sidecar_of_an_old_shard(self, tmp_path: Path) -> None:
        fastio.save_model(nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9)), tmp_path, max_shard_size=400)
        for shard in tmp_path.glob("*.safetensors"):
            fastio.seal(shard)
        fastio.save_model(nn.Linear(3, 3), tmp_path)
        assert [one.name for one in tmp_path.iterdir()] == ["model.safetensors"]

    def test_other_formats_are_refused(self, tmp_path: Path) -> None:
        fastio.save({"a": torch.ones(3)}, tmp_path / "a.pt")
        with pytest.raises(fastio.FormatError, match=r"expected a file of safetensors"):
            fastio.seal(tmp_path / "a.pt")

    def test_hashes_find_what_a_crc_does_not(self, path: Path) -> None:
        """A forged sidecar: the CRC-32 of the damage is in it, the SHA-256 is not."""
        sidecar = Path(fastio.seal(path, hashes=True).sidecar)
        assert fastio.verify(path).hashed
        assert fastio.seal(path).hashed, "a new sidecar keeps what the old one had"
        value = json.loads(sidecar.read_text())
        flip(path, "weight")
        value["crc32"]["weight"] = f"{zlib.crc32(raw(fastio.load(path, verify=False)['weight'])):08x}"
        sidecar.write_text(json.dumps(value))
        assert fastio.load(path).keys() == value["crc32"].keys()
        with pytest.raises(fastio.ChecksumError, match=r"'weight'.*SHA-256 \([0-9a-f]{64}\)"):
            fastio.verify(path)


class TestModule:
    def model(self) -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 40), nn.Linear(40, 30))
        made.tied = nn.Linear(40, 40)
        made.tied.weight = made[1].weight
        return made

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        fastio.save_model(self.model(), tmp_path, max_shard_size="8KB", hashes=True)
        for path in tmp_path.glob("*.safetensors"):
            assert fastio.verify(path).hashed
            with safetensors.safe_open(path, "pt") as file:
                if "1.weight" in file.keys():  # noqa: SIM118
                    flip(path, "1.weight")
        return tmp_path

    @pytest.mark.parametrize("atomic", [True, False])
    def test_damage_is_an_error(self, folder: Path, atomic: bool) -> None:
        model = self.model()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(fastio.ChecksumError, match=r"model-0000.-of-0000.\.safetensors.*'1\.weight'"):
            fastio.load_model(model, folder, atomic=atomic)
        assert not atomic or same(dict(model.state_dict()), before)
        if not atomic:
            with pytest.raises(fastio.ChecksumError, match=r"1\.weight"):
                fastio.load_model(model, folder, atomic=False, strict=False)

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_others_are_loaded_if_not_strict(self, folder: Path, device: str, caplog: pytest.LogCaptureFixture) -> None:
        model, expected = self.model().to(device), self.model().state_dict()
        if device == "cpu":
            for parameter in model.parameters():
                nn.init.zeros_(parameter)
        warns = (
            contextlib.nullcontext() if device == "cpu" else pytest.warns(RuntimeWarning, match="stay without memory")
        )
        with caplog.at_level(logging.WARNING, "fastio.models"), fastio.record() as transfers, warns:
            missing, unexpected = fastio.load_model(model, folder, strict=False, atomic=True)
        assert (missing, unexpected) == (["1.weight", "tied.weight"], [])
        assert "leaves out a damaged tensor" in caplog.text
        assert "1.weight" in caplog.text
        assert all(one.verified for one in transfers)
        for name, tensor in model.state_dict().items():
            if name not in missing:
                assert torch.equal(tensor, expected[name])
            else:
                assert tensor.is_meta if device == "meta" else not tensor.any()
        loaded = self.model()
        assert fastio.load_model(loaded, folder, verify=False) == ([], [])

    @pytest.mark.parametrize("atomic", [True, False])
    def test_a_good_model_is_verified(self, tmp_path: Path, atomic: bool) -> None:
        fastio.save_model(self.model(), tmp_path / "a.safetensors")
        with fastio.record() as transfers:
            fastio.load_model(self.model(), tmp_path / "a.safetensors", atomic=atomic)
        assert [one.verified for one in transfers] == [True]


class TestChangingMemory:
    """Another thread changes tensors during a save."""

    @pytest.mark.parametrize("tool", TOOLS)
    def test_checksums_are_of_what_was_written(self, tmp_path: Path, tool: str) -> None:
        large, columns, ended = torch.zeros(8 << 20, dtype=torch.uint8), torch.zeros(500, 700), threading.Event()

        def change() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                large.fill_(number % 256)
                columns.fill_(number)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for hashes in (False, True, False):
                fastio.save({"a": large, "b": columns.t()}, tmp_path / "a.safetensors", policy=tool, hashes=hashes)
                assert fastio.verify(tmp_path / "a.safetensors").hashed == hashes
        finally:
            ended.set()
            thread.join()

    def test_hashes_are_of_what_was_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a second thread: the memory changes between the write and the hashes."""
        tensors = {"a": torch.zeros(1000), "b": torch.zeros(30, 40).t()}
        original = header_digests.write_after

        def changed(*arguments: Any) -> None:
            tensors["a"][5] = 1
            tensors["b"][0, 3] = 1
            original(*arguments)

        monkeypatch.setattr(header_digests, "write_after", changed)
        fastio.save(tensors, tmp_path / "a.safetensors", hashes=True)
        assert fastio.verify(tmp_path / "a.safetensors").hashed
        assert not any(tensor.any() for tensor in fastio.load(tmp_path / "a.safetensors").values())

    @pytest.mark.parametrize("name", ["a", "b"])
    def test_file_objects_are_an_error(self, name: str) -> None:
        """The header has gone when the tensor changes."""
        tensors = {"a": torch.zeros(1000), "b": torch.zeros(30, 40).t()}

        class Changing(io.BytesIO):
            def write(self, data: Any) -> int:
                tensors[name][1] = 1
                return super().write(data)

        with pytest.raises(fastio.ChecksumError, match=f"'{name}': it was changed while it was written"):
            fastio.save(tensors, Changing(), format="safetensors")
        fastio.save(tensors, Changing(), format="safetensors", checksums=False)


def test_a_tool_that_computes_no_checksums_saves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And if the memory changes while it writes, they are corrected."""
    posix, tensors = registry.get("posix"), some()

    class Blind:
        name = "posix"
        capabilities = posix.capabilities._replace(checksums=False)

        def write(self, request: WriteRequest) -> Any:
            tensors["weight"][0, 0] += 1
            return posix.write(request)._replace(checksums=None)

        def read(self, request: Any) -> Any:
            return posix.read(request)  # what the file has is read back by it, as by the real one

    monkeypatch.setattr(registry, "get", lambda tool: Blind() if tool == "posix" else posix)
    path = tmp_path / "a.safetensors"
    result = fastio.save(tensors, path, policy="posix", hashes=True)
    assert any("memory changed while it was written" in note for note in result.fallbacks)
    monkeypatch.undo()
    check_stored(path, tensors, True)
    assert fastio.verify(path).hashed


def test_a_pipe_gets_checksums(tmp_path: Path) -> None:
    path, tensors = tmp_path / "pipe.safetensors", {"a": torch.randn(300), "b": torch.randn(20, 30).t()}
    os.mkfifo(path)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    assert fastio.save(tensors, path).verified
    reader.join()
    (tmp_path / "got").write_bytes(received[0])
    check_stored(tmp_path / "got", tensors, False)
