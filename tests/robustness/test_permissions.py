"""Permissions during and after a save over an existing file: never wider than the old file's."""

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

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")


def acl(*entries: tuple[int, int, int]) -> bytes:
    """An access control list of (kind, permissions, user) in the kernel's format (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def list_of(group: int, mask: int, *users: tuple[int, int]) -> bytes:
    """A list with permissions of ``users``; the owner may read and write, others nothing."""
    named = [(USER, permissions, user) for user, permissions in users]
    return acl((OWNER, 6, 0xFFFFFFFF), *named, (GROUP, group, 0xFFFFFFFF), (MASK, mask, 0xFFFFFFFF), (OTHER, 0, 0))


@pytest.fixture
def path() -> Iterator[Path]:
    """A file in a folder that every user may write to."""
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
def test_save_keeps_the_access_control_list(path: Path, policy: str) -> None:
    value = list_of(0, 6, (ANN, 6), (BOB, 4))
    set_acl(path, ACCESS, value)
    before = os.getxattr(path, ACCESS)
    fastio.save(torch.ones(5), path, policy=policy)
    assert os.getxattr(path, ACCESS) == before
    assert mode_of(path) == 0o660  # shows the list's mask: the group itself has no permissions
    assert torch.equal(torch.load(path), torch.ones(5))


def test_save_removes_an_inherited_acl_that_the_old_file_lacks(path: Path) -> None:
    path.chmod(0o640)
    set_acl(path.parent, DEFAULT, list_of(6, 6, (ANN, 6)))
    fastio.save(torch.ones(5), path)
    assert ACCESS not in os.listxattr(path)
    assert mode_of(path) == 0o640
    fastio.save(torch.ones(5), path.with_name("new.pt"))
    assert ACCESS in os.listxattr(path.with_name("new.pt"))


def test_save_keeps_user_attributes(path: Path) -> None:
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
def test_save_keeps_owner_and_mode_from_the_first_byte(server: Server, path: Path, mode: int) -> None:
    os.chown(path, ANN, TEAM)
    path.chmod(mode)
    result = server.run("save_as", path=str(path), uid=0, gid=0, groups=[], umask=0o022)
    assert result["error"] is None
    assert (mode_of(path), path.stat().st_uid, path.stat().st_gid) == (mode, ANN, TEAM)
    assert result["meanwhile"] == [[mode | 0o600, ANN, TEAM]]
    assert objects.version_of(objects.read(path)) == objects.NEW


@pytest.mark.parametrize("mode", [0o4755, 0o2775, 0o1644, 0o7777, 0o2640, 0o4400], ids=oct)
@pytest.mark.parametrize("policy", ["posix", "torch"])
def test_save_drops_setuid_setgid_and_sticky(path: Path, mode: int, policy: str) -> None:
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
def test_permissions_shrink_if_the_group_cannot_be_kept(server: Server, path: Path, before: int, after: int) -> None:
    os.chown(path, NOBODY, TEAM)
    path.chmod(before)
    result = server.run("save_as", path=str(path), uid=NOBODY, gid=OTHERS, groups=[], umask=0)
    assert result["error"] is None
    assert (mode_of(path), path.stat().st_gid) == (after, OTHERS)
    assert [mode for mode, _, _ in result["meanwhile"]] == [after]


@pytest.mark.parametrize("uid", [NOBODY, ANN])
@as_root
def test_save_keeps_a_group_of_the_saving_user(server: Server, path: Path, uid: int) -> None:
    os.chown(path, ANN, TEAM)
    path.chmod(0o660)
    result = server.run("save_as", path=str(path), uid=uid, gid=OTHERS, groups=[TEAM], umask=0o077)
    assert result["error"] is None
    assert (mode_of(path), path.stat().st_uid, path.stat().st_gid) == (0o660, uid, TEAM)


@as_root
def test_save_drops_the_acl_if_the_group_cannot_be_kept(server: Server, path: Path) -> None:
    os.chown(path, ANN, TEAM)
    set_acl(path, ACCESS, list_of(6, 6, (NOBODY, 6), (BOB, 0)))
    result = server.run("save_as", path=str(path), uid=NOBODY, gid=OTHERS, groups=[], umask=0)
    assert result["error"] is None
    assert ACCESS not in os.listxattr(path)
    assert mode_of(path) == 0o600


@as_root
def test_group_gets_no_permissions_if_the_acl_cannot_be_written(server: Server, path: Path) -> None:
    value = list_of(0, 6, (ANN, 6))
    set_acl(path, ACCESS, value)
    fault = Fault("attribute", errno.ENOSPC, times=ALWAYS)
    result = server.run("save_and_look", fault, path=str(path))
    assert result["strikes"] == 1
    assert result["error"] is None
    assert result["mode"] == 0o600


def test_save_over_a_mount_point_is_refused_with_the_cure(tmp_path: Path) -> None:
    """Like a container's volume of one file; in a mount namespace of its own."""
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
