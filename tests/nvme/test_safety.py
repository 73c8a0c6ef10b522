"""Tests which devices must not be overwritten: real images and loop devices, and trees of /sys."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastio.errors import DeviceInUseError
from fastio.nvme import refuse_contents, refuse_controller_in_use, refuse_in_use, signatures
from machines import Machine

MIB = 1 << 20
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/sbin", "/usr/sbin"])


def tool(name: str) -> str:
    """Return the path of a tool; skip the test if it is not installed."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run(name: str, *arguments: str, stdin: str = "") -> str:
    child = subprocess.run([tool(name), *arguments], input=stdin, check=False, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


def image(path: Path, *pieces: tuple[int, bytes], nbytes: int = 4 * MIB) -> Path:
    """A sparse file of ``nbytes`` with these bytes at these offsets; negative offsets count from the end."""
    with path.open("wb") as file:
        file.truncate(nbytes)
        for offset, data in pieces:
            file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
            file.write(data)
    return path


@pytest.fixture(params=["with blkid", "without blkid"])
def blkid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "with blkid":
        tool("blkid")
    else:
        monkeypatch.setattr(signatures, "_by_blkid", lambda path: "")
    return str(request.param)


# Contents

MAKERS: dict[str, tuple[str, ...]] = {
    "mkfs.ext2": ("-q", "-F"),
    "mkfs.ext4": ("-q", "-F"),
    "mkfs.xfs": ("-q", "-f"),
    "mkfs.btrfs": ("-q", "-f"),
    "mkfs.f2fs": ("-q", "-f"),
    "mkfs.vfat": (),
    "mkfs.exfat": (),
    "mkntfs": ("-Q", "-F", "-q"),
    "mkswap": ("-q",),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_filesystems_made_by_mkfs_are_found(tmp_path: Path, maker: str, blkid: str) -> None:
    path = image(tmp_path / "disk", nbytes=400 * MIB)
    refuse_in_use(str(path), None)
    run(maker, *MAKERS[maker], str(path))
    with pytest.raises(DeviceInUseError, match=r"it holds .+ \((at byte \d+|by blkid)\); empty it \(`wipefs --all"):
        refuse_in_use(str(path), None)


@pytest.mark.parametrize("label", ["dos", "gpt"])
def test_partition_tables_are_found(tmp_path: Path, label: str, blkid: str) -> None:
    path = image(tmp_path / "disk", nbytes=8 * MIB)
    run("sfdisk", "-q", str(path), stdin=f"label: {label}\n,,\n")
    with pytest.raises(DeviceInUseError, match=r"it holds a partition table|it holds a GPT partition table"):
        refuse_in_use(str(path), None)
    if label == "gpt":  # wiping only the beginning leaves the copy at the end
        image(path, (-512, b"EFI PART"), nbytes=8 * MIB)
        with pytest.raises(DeviceInUseError, match="the second copy of a GPT"):
            refuse_in_use(str(path), None)


# Offsets from the documentation of each superblock.
KNOWN: dict[str, tuple[int, bytes]] = {
    "an xfs filesystem": (0, b"XFSB\0\0\x10\0"),
    "a btrfs filesystem": (65536 + 64, b"_BHRfS_M"),
    "swap space": (4096 - 10, b"SWAPSPACE2"),
    "an LVM2 physical volume": (512, b"LABELONE" + bytes(16) + b"LVM2 001"),
    "an mdraid member": (4096, (0xA92B4EFC).to_bytes(4, "little")),
    "a LUKS volume": (0, b"LUKS\xba\xbe\0\x02"),
    "an f2fs filesystem": (1024, (0xF2F52010).to_bytes(4, "little")),
    "an NTFS filesystem": (3, b"NTFS    "),
    "an exFAT filesystem": (3, b"EXFAT   "),
    "a FAT filesystem": (82, b"FAT32   "),
    "a squashfs filesystem": (0, b"hsqs"),
    "an ISO 9660 filesystem": (16 * 2048 + 1, b"CD001"),
    "a bcachefs filesystem": (4096 + 24, bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef")),
    "a ZFS pool's member": (256 * 1024 + 128 * 1024 + 5 * 1024, (0x00BAB10C).to_bytes(8, "little")),
}
AT_THE_END = {
    "mdraid 1.0": ((4 * MIB // 512 - 16) * 512, (0xA92B4EFC).to_bytes(4, "little")),
    "mdraid 0.90": (4 * MIB - 65536, (0xA92B4EFC).to_bytes(4, "big")),
    "ZFS, the last label": (4 * MIB - 128 * 1024, (0x00BAB10C).to_bytes(8, "big")),
}


@pytest.mark.parametrize("what", KNOWN)
def test_each_known_signature_is_found_without_blkid(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "_by_blkid", lambda path: "")
    with pytest.raises(DeviceInUseError, match=f"it holds {what} "):
        refuse_in_use(str(image(tmp_path / "disk", KNOWN[what])), None)


@pytest.mark.parametrize("what", AT_THE_END)
def test_signatures_at_the_end_are_found(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_by_blkid", lambda path: "")
    with pytest.raises(DeviceInUseError, match="it holds"):
        refuse_in_use(str(image(tmp_path / "disk", AT_THE_END[what])), None)


@pytest.mark.parametrize("nbytes", [0, 512, 4096, 70_000, 300_000, 4 * MIB + 512])
def test_empty_device_of_any_size_holds_nothing(tmp_path: Path, nbytes: int, blkid: str) -> None:
    refuse_in_use(str(image(tmp_path / "disk", nbytes=nbytes)), None)


def test_arbitrary_bytes_hold_nothing(tmp_path: Path, blkid: str) -> None:
    """Bytes that an earlier store left have no meaning."""
    refuse_in_use(str(image(tmp_path / "disk", (0, b"\xa5" * MIB))), None)


def test_unreadable_device_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        refuse_in_use(str(tmp_path / "missing"), None)

    def broken(offset: int, nbytes: int) -> bytes:
        raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        refuse_contents("0000:03:00.0", "S1", broken, 4 * MIB, None)


def test_user_level_driver_is_read_in_whole_blocks() -> None:
    """Reads are whole blocks inside the device."""
    disk = bytearray(4 * MIB)
    asked: list[tuple[int, int]] = []

    def read(offset: int, nbytes: int) -> bytes:
        asked.append((offset, nbytes))
        assert offset + nbytes <= len(disk)
        return bytes(disk[offset : offset + nbytes])

    refuse_contents("0000:03:00.0", "S1", read, len(disk), None)
    assert all(offset % 4096 == 0 and nbytes % 4096 == 0 for offset, nbytes in asked)
    disk[1080:1082] = b"\x53\xef"
    with pytest.raises(DeviceInUseError, match=r"^0000:03:00.0 \(serial number S1\): it holds an ext2"):
        refuse_contents("0000:03:00.0", "S1", read, len(disk), "S2")
    refuse_contents("0000:03:00.0", "S1", read, len(disk), "S1")


# Users of a device, in a tree of /sys


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.controller("0000:03:00.0", number=0, serial="S4EV1234")
    made.namespace("0000:03:00.0", nsid=1, nbytes=8 * MIB)
    return made


def refused(machine: Machine, force: str | None = None, device: str = "nvme0n1") -> DeviceInUseError:
    with pytest.raises(DeviceInUseError) as caught:
        refuse_in_use(str(machine.root / "dev" / device), force, machine.root)
    return caught.value


def test_unused_empty_namespace_is_accepted(machine: Machine) -> None:
    for device in ("nvme0n1", "ng0n1"):
        refuse_in_use(str(machine.root / "dev" / device), None, machine.root)


USERS: dict[str, tuple[Callable[[Machine], object], str]] = {
    "mounted": (lambda machine: machine.mount("nvme0n1", "/mnt/a\\040b"), "nvme0n1 is mounted on /mnt/a b"),
    "btrfs": (lambda machine: machine.mount("nvme0n1", "/b", number="0:44"), "nvme0n1 is mounted on /b"),
    "its partition": (
        lambda machine: (machine.partition("nvme0n1", 2), machine.mount("nvme0n1p2", "/home")),
        "nvme0n1p2 is mounted on /home",
    ),
    "LVM or dm": (lambda machine: machine.hold("nvme0n1", "dm-3", dm="cryptroot"), "dm-3 (cryptroot) is built on"),
    "mdraid": (lambda machine: machine.hold("nvme0n1", "md127"), "md127 is built on nvme0n1"),
    "swap": (lambda machine: machine.swap("nvme0n1"), "nvme0n1 is swap space in use"),
}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("device", ["nvme0n1", "ng0n1"])
def test_device_in_use_is_refused_even_with_force(machine: Machine, user: str, device: str) -> None:
    make, problem = USERS[user]
    make(machine)
    for force in (None, "S4EV1234"):
        error = refused(machine, force, device)
        assert problem in error.problem
        assert error.serial == "S4EV1234"
        assert "force=" not in error.cure
    with pytest.raises(DeviceInUseError) as caught:
        refuse_controller_in_use("0000:03:00.0", "S4EV1234", machine.root)
    assert problem in caught.value.problem


def test_device_with_contents_needs_its_serial_number(machine: Machine) -> None:
    machine.contents("nvme0n1", 1080, b"\x53\xef")
    for force in (None, "", "S4EV", "another"):
        error = refused(machine, force)
        assert "an ext2, ext3 or ext4 filesystem (at byte 1080)" in error.problem
        assert "force='S4EV1234' overwrites it" in error.cure
    refuse_in_use(str(machine.root / "dev/ng0n1"), "S4EV1234", machine.root)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.device, again.serial) == (str(error), error.device, "S4EV1234")


def test_device_with_partitions_needs_its_serial_number(machine: Machine) -> None:
    machine.partition("nvme0n1", 1)
    assert "it has partitions: nvme0n1p1" in refused(machine).problem
    refuse_in_use(str(machine.root / "dev/nvme0n1"), "S4EV1234", machine.root)


def test_drive_without_a_serial_number_cannot_be_forced(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.controller("0000:03:00.0", number=0, serial="")
    machine.namespace("0000:03:00.0", nsid=1, nbytes=8 * MIB)
    machine.contents("nvme0n1", 0, b"XFSB")
    error = refused(machine, "")
    assert "force" not in error.cure
    assert "(serial number unknown)" in str(error)


def test_passthrough_device_without_its_block_device_is_refused(machine: Machine) -> None:
    """For example in a container that has only /dev/ng0n1."""
    (machine.root / "dev/nvme0n1").unlink()
    assert "its contents cannot be read" in refused(machine, None, "ng0n1").problem
    refuse_in_use(str(machine.root / "dev/ng0n1"), "S4EV1234", machine.root)


def test_controller_without_namespaces_is_accepted(machine: Machine) -> None:
    refuse_controller_in_use("0000:03:00.0", None, machine.root)
    refuse_controller_in_use("0000:99:00.0", None, machine.root)


# A real device


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """A loop device over a file of 64 MiB."""
    path = image(tmp_path / "disk", nbytes=64 * MIB)
    child = subprocess.run(
        [tool("losetup"), "--find", "--show", str(path)], check=False, capture_output=True, text=True
    )
    if child.returncode != 0:
        pytest.skip(f"no loop device: {child.stderr.strip()}")
    device = child.stdout.strip()
    yield device
    run("losetup", "--detach", device)


def test_loop_device_is_refused_if_it_is_in_use_or_holds_data(loop: str, tmp_path: Path) -> None:
    refuse_in_use(loop, None)
    run("mkfs.ext4", "-q", loop)
    with pytest.raises(DeviceInUseError, match="ext4 filesystem"):
        refuse_in_use(loop, None)
    point = tmp_path / "point"
    point.mkdir()
    mounted = subprocess.run([tool("mount"), loop, str(point)], check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mount: {mounted.stderr.strip()}")
    try:
        with pytest.raises(DeviceInUseError, match=f"is mounted on {point}"):
            refuse_in_use(loop, None)
    finally:
        run("umount", str(point))


def test_device_claimed_exclusively_is_refused(loop: str) -> None:
    """/sys does not list the claim; the kernel knows it."""
    try:
        fd = os.open(loop, os.O_RDONLY | os.O_EXCL)
    except PermissionError:
        pytest.skip("may not open block devices")
    try:
        with pytest.raises(DeviceInUseError, match="the kernel says that it is in use"):
            refuse_in_use(loop, None)
    finally:
        os.close(fd)
