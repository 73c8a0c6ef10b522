"""Who may read a file after it was saved over, and meanwhile: never anybody who could not before."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fastio
from faults import ALWAYS, Fault, Server, objects

NOBODY, TEAM, OTHERS = 65534, 54321, 54322
ANN, BOB = 12345, 12346
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
OWNER, USER, GROUP, MASK, OTHER = 1, 2, 4, 16, 32

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")


def acl(*entries: tuple[int, int, int]) -> bytes:
    """An access control list of (kind, rights, user), as the kernel takes it (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def list_of(group: int, mask: int, *users: tuple[int, int]) -> bytes:
    """One of users' rights; the owner reads and writes, others may do nothing."""
    named = [(USER, right, user) for user, right in users]
    return acl((OWNER, 6, 0xFFFFFFFF), *named, (GROUP, group, 0xFFFFFFFF), (MASK, mask, 0xFFFFFFFF), (OTHER, 0, 0))


@pytest.fixture
def path() -> Iterator[Path]:
    """A file, in a folder that anybody may write."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    target = folder / "it.pt"
    objects.write(objects.make(objects.OLD), target)
    yield target
    shutil.rmtree(folder)


def set_acl(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this filesystem has no access control lists")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("policy", ["posix", "uring", "torch"])
def test_an_access_control_list_stays(path: Path, policy: str) -> None:
    value = list_of(0, 6, (ANN, 6), (BOB, 4))
    set_acl(path, ACCESS, value)
    before = os.getxattr(path, ACCESS)
    fastio.save(torch.ones(5), path, policy=policy)
    assert os.getxattr(path, ACCESS) == before
    assert mode_of(path) == 0o660  # of the list's mask: the group itself has nothing
    assert torch.equal(torch.load(path), torch.ones(5))


def test_a_list_that_the_folder_gives_is_taken_away_where_the_old_file_has_none(path: Path) -> None:
    path.chmod(0o640)
    set_acl(path.parent, DEFAULT, list_of(6, 6, (ANN, 6)))
    fastio.save(torch.ones(5), path)
    assert ACCESS not in os.listxattr(path)
    assert mode_of(path) == 0o640
    fastio.save(torch.ones(5), path.with_name("new.pt"))
    assert ACCESS in os.listxattr(path.with_name("new.pt"))


def test_what_users_have_noted_stays(path: Path) -> None:
    try:
        os.setxattr(path, "user.origin", b"run 7")
    except OSError:
        pytest.skip("this filesystem has no attributes")
    os.setxattr(path, "user.none", b"")
    for _ in range(2):
        fastio.save(torch.ones(5), path)
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == {"user.origin": b"run 7", "user.none": b""}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666, 0o444, 0o400, 0o755], ids=oct)
@as_root
def test_the_owner_and_the_mode_stay_and_are_there_from_the_start(server: Server, path: Path, mode: int) -> None:
    os.chown(path, ANN, TEAM)
    path.chmod(mode)
    result = server.run("save_as", path=str(path), uid=0, gid=0, groups=[], umask=0o022)
    assert result["error"] is None
    assert (mode_of(path), path.stat().st_uid, path.stat().st_gid) == (mode, ANN, TEAM)
    assert result["meanwhile"] == [[mode | 0o600, ANN, TEAM]]
    assert objects.version_of(objects.read(path)) == objects.NEW


@pytest.mark.parametrize("mode", [0o4755, 0o2775, 0o1644, 0o7777, 0o2640, 0o4400], ids=oct)
@pytest.mark.parametrize("policy", ["posix", "torch"])
def test_setuid_setgid_and_sticky_go_with_the_old_bytes(path: Path, mode: int, policy: str) -> None:
    path.chmod(mode)
    assert mode_of(path) == mode
    meanwhile: list[int] = []

    def look(*_: int) -> None:
        meanwhile.extend(mode_of(name) for name in path.parent.iterdir() if name != path)

    fastio.save(torch.ones(5), path, policy=policy, progress=look)
    assert mode_of(path) == mode & 0o777
    assert meanwhile
    assert all(seen & 0o7000 == 0 for seen in meanwhile)


@pytest.mark.parametrize(
    ("before", "after"),
    [(0o666, 0o666), (0o662, 0o622), (0o606, 0o600), (0o646, 0o644), (0o777, 0o777)],
    ids=oct,
)
@as_root
def test_a_group_that_cannot_be_kept_gives_its_rights_to_no_other(
    server: Server, path: Path, before: int, after: int
) -> None:
    os.chown(path, NOBODY, TEAM)
    path.chmod(before)
    result = server.run("save_as", path=str(path), uid=NOBODY, gid=OTHERS, groups=[], umask=0)
    assert result["error"] is None
    assert (mode_of(path), path.stat().st_gid) == (after, OTHERS)
    assert [mode for mode, _, _ in result["meanwhile"]] == [after]


@pytest.mark.parametrize("uid", [NOBODY, ANN])
@as_root
def test_a_group_that_the_saver_is_in_is_kept(server: Server, path: Path, uid: int) -> None:
    os.chown(path, ANN, TEAM)
    path.chmod(0o660)
    result = server.run("save_as", path=str(path), uid=uid, gid=OTHERS, groups=[TEAM], umask=0o077)
    assert result["error"] is None
    assert (mode_of(path), path.stat().st_uid, path.stat().st_gid) == (0o660, uid, TEAM)


@as_root
def test_a_list_goes_where_its_group_cannot_be_kept(server: Server, path: Path) -> None:
    os.chown(path, ANN, TEAM)
    set_acl(path, ACCESS, list_of(6, 6, (NOBODY, 6), (BOB, 0)))
    result = server.run("save_as", path=str(path), uid=NOBODY, gid=OTHERS, groups=[], umask=0)
    assert result["error"] is None
    assert ACCESS not in os.listxattr(path)
    assert mode_of(path) == 0o600


@as_root
def test_a_list_that_cannot_be_written_gives_the_group_nothing(server: Server, path: Path) -> None:
    value = list_of(0, 6, (ANN, 6))
    set_acl(path, ACCESS, value)
    fault = Fault("attribute", errno.ENOSPC, times=ALWAYS)
    result = server.run("save_and_look", fault, path=str(path))
    assert result["strikes"] == 1
    assert result["error"] is None
    assert result["mode"] == 0o600


def test_a_file_that_is_a_mount_point(tmp_path: Path) -> None:
    """As a container's volume of one file. In a mount namespace of its own."""
    code = f"""
import torch, fastio
try:
    fastio.save(torch.ones(5), {str(tmp_path / "mounted.pt")!r})
except fastio.TransferError as error:
    print(type(error).__name__, error.errno, error)
"""
    for name in ("mounted.pt", "volume.pt"):
        fastio.save(torch.zeros(3), tmp_path / name)
    before = sorted(tmp_path.iterdir())
    mount = f"mount --bind {tmp_path}/volume.pt {tmp_path}/mounted.pt || exit 77; exec {sys.executable} -c '$0'"
    mount = mount.replace("'$0'", '"$0"')
    done = subprocess.run(["unshare", "-m", "sh", "-c", mount, code], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespace can be made here")
    assert done.stdout.startswith(f"NotReplaceableError {errno.EBUSY} "), done
    assert "mounted.pt" in done.stdout
    assert "mount its folder instead" in done.stdout
    assert sorted(tmp_path.iterdir()) == before
    assert torch.equal(fastio.load(tmp_path / "volume.pt"), torch.zeros(3))
