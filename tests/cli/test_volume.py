"""``fastio volume create``, ``ls``, ``cp`` and ``rm``: what they do, say and give as JSON, and their exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import fastio
from commands import run


@pytest.fixture
def volume(tmp_path: Path) -> str:
    said = run("volume", "create", tmp_path / "volume", "1MiB").stdout
    assert said == f"file:{tmp_path}/volume: a volume with room for 888 KiB (909 KB), 909,312 bytes\n"
    fastio.save({"a": torch.ones(1000)}, tmp_path / "x.pt", policy="posix")
    return f"file:{tmp_path}/volume"


def test_objects_are_copied_listed_checked_and_removed(volume: str, tmp_path: Path) -> None:
    assert run("cp", tmp_path / "x.pt", volume).stdout == f"{volume}/x.pt: 28.6 KiB\n"
    run("cp", tmp_path / "x.pt", f"{volume}/run-1/")
    run("cp", f"{volume}/run-1/x.pt", f"{volume}/y.pt")
    run("cp", f"{volume}/y.pt", tmp_path)
    assert (tmp_path / "y.pt").read_bytes() == (tmp_path / "x.pt").read_bytes()
    assert "verified: 7 records" in run("verify", f"{volume}/y.pt").stdout
    assert "[1000]" in run("inspect", f"{volume}/run-1/x.pt").stdout
    assert run("diff", f"{volume}/y.pt", tmp_path / "x.pt").stdout.startswith("equal: 1 tensor")
    lines = run("ls", tmp_path / "volume").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "run-1/x.pt", "x.pt", "y.pt", f"{volume}:"]
    assert lines[-1] == f"{volume}: 792 KiB (811 KB) of 888 KiB (909 KB) are free"
    assert [one["name"] for one in json.loads(run("ls", f"{volume}/run", "--json").stdout)["objects"]] == ["run-1/x.pt"]
    outcomes = json.loads(run("rm", f"{volume}/x.pt", f"{volume}/x.pt", f"{volume}/y.pt", "--json", status=2).stdout)
    assert [one["status"] for one in outcomes] == ["removed", "failed", "removed"]
    assert outcomes[1]["problem"].startswith(f"{volume}/x.pt: The volume has no object 'x.pt'; alike: 'y.pt'")
    found = json.loads(run("ls", volume, "--json").stdout)
    (left,) = found["objects"]
    assert (found["volume"], found["nbytes"], found["free_nbytes"]) == (volume, 909_312, 909_312 - 32_768)
    assert (left["name"], left["nbytes"], left["runs"]) == ("run-1/x.pt", (tmp_path / "x.pt").stat().st_size, 1)


def test_what_is_there_is_replaced_only_by_force(volume: str, tmp_path: Path) -> None:
    run("cp", tmp_path / "x.pt", volume)
    for source, target in ((tmp_path / "x.pt", f"{volume}/x.pt"), (f"{volume}/x.pt", tmp_path / "x.pt")):
        said = run("cp", source, target, status=2).stderr
        assert said == f"fastio: {target}: File exists; --force replaces it\n"
        run("cp", source, target, "--force")
    said = run("volume", "create", tmp_path / "volume", "1MiB", status=2).stderr
    assert "there is such a file already; remove it first, or name another path" in said


def test_a_pipe_is_not_copied_and_a_missing_folder_is_named(volume: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        assert "expected a regular file" in run("cp", path, f"{volume}/x", status=2).output
    said = run("volume", "create", tmp_path / "missing" / "volume", "1MiB", status=2).output
    assert "there is no such folder for the new volume" in said


def test_wrong_arguments_are_errors_with_cures(volume: str, tmp_path: Path) -> None:
    assert "expected an object of a volume, as in VOLUME/NAME" in run("rm", tmp_path / "x.pt", status=2).stderr
    assert "it is no volume: it begins with b'PK" in run("ls", tmp_path / "x.pt", status=2).stderr
    assert "there is no such volume: check the path" in run("ls", tmp_path / "none", status=2).stderr
    for command in ("ls", "volume create"):
        said = run(*command.split(), "memory://bucket/run?sig=a b", status=2).stderr
        assert "memory://bucket/run?sig=***: no volume can be at a remote place, expected a file or a device" in said
    assert "remove files by the tools of that place" in run("rm", "memory://bucket/x.pt", status=2).stderr
    assert "expected the size of the new file" in run("volume", "create", tmp_path / "new", status=2).stderr
    assert "no size: expected bytes" in run("volume", "create", tmp_path / "new", "1QB", status=2).stderr
    assert (
        "a volume needs at least 140 KiB (143,360 bytes), got 4 KiB (4,096 bytes)"
        in run("volume", "create", tmp_path / "new", 4096, status=2).stderr
    )
    assert "no object 'none'" in run("cp", f"{volume}/none", tmp_path / "z.pt", status=2).stderr
    assert "no object 'z'" in run("ls", f"{volume}/z", status=2).stderr
    assert "needs 1.91 MiB" in run("cp", large(tmp_path), volume, status=2).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.npy", "volume", "x.pt"]


def large(folder: Path) -> Path:
    fastio.save(torch.zeros(500_000), folder / "large.npy")
    return folder / "large.npy"


def test_a_file_of_the_name_of_a_volume_in_a_folder_does_not_replace_it(volume: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "x.pt").rename(tmp_path / "other" / "volume")
    before = (tmp_path / "volume").read_bytes()
    for force in ((), ("--force",)):
        said = run("cp", tmp_path / "other" / "volume", tmp_path, *force, status=2).stderr
        assert f"it is a volume, which the copy would replace: name {volume} to copy into it" in said
    assert (tmp_path / "volume").read_bytes() == before


def test_every_subcommand_takes_names_without_file(
    volume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("cp", "x.pt", "volume").stdout == "file:volume/x.pt: 28.6 KiB\n"
    run("cp", "x.pt", "volume/run/")
    assert run("cp", "volume/run/x.pt", "y.pt").stdout == "y.pt: 28.6 KiB\n"
    assert (tmp_path / "y.pt").read_bytes() == (tmp_path / "x.pt").read_bytes()
    assert "[1000]" in run("inspect", "volume/x.pt").stdout
    assert run("inspect", "volume").stdout == run("ls", "volume").stdout == run("ls", "file:volume").stdout
    assert [one["name"] for one in json.loads(run("ls", "volume/run", "--json").stdout)["objects"]] == ["run/x.pt"]
    assert run("verify", "volume/x.pt").stdout.startswith("file:volume/x.pt: verified: 7 records")
    assert run("diff", "volume/x.pt", "file:volume/run/x.pt").stdout.startswith("equal: 1 tensor")
    assert "posix" in run("explain", "volume/x.pt").stdout
    run("convert", "volume/x.pt", "z.safetensors")
    assert "cannot be in a volume" in run("convert", "x.pt", "volume/z.safetensors", status=2).stderr
    assert "has no place for them" in run("seal", "volume/x.pt", status=2).stderr
    run("rm", "volume/x.pt", f"{volume}/run/x.pt")
    assert json.loads(run("ls", "volume", "--json").stdout)["objects"] == []


@pytest.mark.parametrize("prefix", ["", "file:"])
def test_a_volume_where_an_object_is_meant_is_an_error(
    volume: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = f"{prefix}volume"
    for arguments in (("rm", whole), ("diff", whole, "x.pt"), ("convert", whole, "y.npy"), ("explain", whole)):
        said = run(*arguments, status=2).stderr
        assert said.startswith("fastio: file:volume: expected the name of an object behind the volume's"), arguments


def test_a_volume_is_copied_as_the_file_that_it_is(volume: str, tmp_path: Path) -> None:
    run("cp", tmp_path / "x.pt", volume)
    file, backup = tmp_path / "volume", tmp_path / "backup"
    for _ in range(2):
        run("cp", file, backup, "--force")
    assert backup.read_bytes() == file.read_bytes()
    assert "expected the name of an object" in run("cp", volume, tmp_path / "other", status=2).stderr
    assert f"file:{backup}/x.pt: verified" in run("verify", backup).stdout


def test_verify_of_a_volume_checks_every_object(volume: str, tmp_path: Path) -> None:
    assert (
        run("verify", volume).stdout == f"{volume}: not verified: volume: it holds no objects; its journal is sound\n"
    )
    weights = torch.arange(2000.0)
    fastio.save_file({"w": weights}, tmp_path / "w.safetensors")
    (tmp_path / "config.json").write_text('{"layers": 2}')
    for name in ("x.pt", "w.safetensors"):
        run("cp", tmp_path / name, f"{volume}/run/")
    for path in (volume, tmp_path / "volume"):
        lines = run("verify", path).stdout.splitlines()
        assert [line.split(" verified:")[0] for line in lines] == [
            f"{volume}/run/w.safetensors:",
            f"{volume}/run/x.pt:",
        ]
    run("cp", tmp_path / "config.json", volume)
    assert f"unreadable: {volume}/config.json: it is JSON" in run("verify", volume, status=2).stderr
    damaged = bytearray((tmp_path / "volume").read_bytes())
    damaged[damaged.index(weights.numpy().tobytes()) + 40] ^= 1
    (tmp_path / "volume").write_bytes(damaged)
    outcomes = json.loads(run("verify", volume, "--json", status=1).stdout)
    assert [(Path(one["path"]).name, one["status"]) for one in outcomes] == [
        ("config.json", "unreadable"),
        ("w.safetensors", "damaged"),
        ("x.pt", "verified"),
    ]
    assert outcomes[1]["record"] == "w"
    damaged[:4096] = bytes(4096)
    (tmp_path / "volume").write_bytes(damaged)
    assert len(json.loads(run("verify", tmp_path / "volume", "--json", status=1).stdout)) == 3
    damaged[:8192] = bytes(8192)
    (tmp_path / "volume").write_bytes(damaged)
    assert "it is no volume" in run("verify", volume, status=2).stderr


def test_files_that_are_taken_for_a_volumes_objects_are_named(volume: str, tmp_path: Path) -> None:
    with pytest.raises(fastio.FormatError, match=r"it is a volume of fastio, .* as in file:VOLUME/NAME"):
        fastio.load(tmp_path / "volume")
    with pytest.raises(fastio.VolumeError, match="an object of a volume has no place for them"):
        fastio.seal(f"{volume}/w.safetensors")
