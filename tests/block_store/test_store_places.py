"""Tests which driver a place selects, and which devices a block store must not touch."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fastio._native import nvme_status
from fastio.errors import DeviceInUseError, TransferError
from fastio.offload.stores.block_store import BlockStore
from fastio.offload.stores.namespaces import passthrough
from fastio.offload.stores.store_errors import transfer_error
from fastio.offload.stores.store_opening import choose_driver, pci_address

MIB = 1 << 20


@pytest.mark.parametrize(
    ("places", "asked", "driver", "paths"),
    [
        (["/scratch"], None, "uring", ["/scratch"]),
        (["/scratch", "/more"], "threads", "threads", ["/scratch", "/more"]),
        (["nvme:/dev/ng0n1", "nvme:/dev/ng1n1"], None, "nvme", ["/dev/ng0n1", "/dev/ng1n1"]),
        (["/dev/ng0n1"], "nvme", "nvme", ["/dev/ng0n1"]),
        (["nvme:/dev/ng0n1", "/dev/ng1n1"], "nvme", "nvme", ["/dev/ng0n1", "/dev/ng1n1"]),
        (["vfio:0000:03:00.0/2"], None, "vfio", ["0000:03:00.0/2"]),
        (["spdk:trtype=TCP traddr=10.0.0.1"], None, "spdk", ["trtype=TCP traddr=10.0.0.1"]),
        (["./nvme:folder", Path("a:b")], None, "uring", ["./nvme:folder", "a:b"]),
    ],
)
def test_place_determines_its_driver(
    places: list[str | Path], asked: str | None, driver: str, paths: list[str]
) -> None:
    assert choose_driver(places, asked) == (driver, paths)


@pytest.mark.parametrize(
    ("places", "asked"),
    [
        (["nvme:/dev/ng0n1", "/scratch"], None),
        (["nvme:/dev/ng0n1", "vfio:0000:03:00.0"], None),
        (["nvme:/dev/ng0n1"], "uring"),
        (["vfio:0000:03:00.0"], "spdk"),
    ],
)
def test_places_of_several_drivers_raise_an_error(places: list[str], asked: str | None) -> None:
    with pytest.raises(ValueError, match="all places of a store are of one driver") as caught:
        BlockStore(places, driver=asked)
    assert all(place in str(caught.value) for place in places)


def test_pci_address_is_read_from_the_place() -> None:
    assert pci_address("vfio", "0000:03:00.0/2") == "0000:03:00.0"
    assert pci_address("spdk", "trtype=PCIe traddr=0000:03:00.0") == "0000:03:00.0"
    assert pci_address("spdk", "trtype:PCIe traddr:0000:03:00.0 ns=1") == "0000:03:00.0"
    assert pci_address("spdk", "trtype=TCP traddr=10.0.0.1 trsvcid=4420") == ""


def test_passthrough_device_is_derived_from_the_namespace() -> None:
    assert passthrough("/dev/ng0n1") == "/dev/ng0n1"
    assert passthrough("/dev/nvme10n2") == "/dev/ng10n2"
    with pytest.raises(ValueError, match="nvme0n1p1 is a partition, which has no passthrough device"):
        passthrough("/dev/nvme0n1p1")


def test_other_paths_than_namespaces_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="fastio-bench doctor lists the namespaces") as caught:
        BlockStore(f"nvme:{tmp_path}/ng9n9")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, f"{tmp_path}/ng9n9")
    (tmp_path / "ng0n1").write_text("a file of this name")
    for place in (tmp_path, tmp_path / "ng0n1", Path("/dev/null")):
        with pytest.raises(ValueError, match=f"{place} is not an NVMe namespace: expected a device such as"):
            BlockStore(f"nvme:{place}")


def test_missing_controller_raises_an_error() -> None:
    with pytest.raises(TransferError, match=r"driver vfio .*0000:ff:1f\.7") as caught:
        BlockStore("vfio:0000:ff:1f.7")
    assert caught.value.filename == "0000:ff:1f.7"


def test_transfer_error_names_driver_lba_and_status() -> None:
    places = ["/dev/ng0n1", "/dev/ng1n1"]
    failure = (errno.EIO, False, 1, 10, False, 0x4281)
    error = transfer_error("nvme", 3, failure, places, [4096, 512])
    assert "driver nvme: read of index 3 at LBA 80, with NVMe status unrecovered read error (0x281)," in str(error)
    assert error.filename == "/dev/ng1n1"
    plain = transfer_error("uring", 3, (errno.EIO, True, 0, 10, True, 0), places, [4096, 4096])
    assert "write of index 3 at LBA 10 (the device stopped moving bytes without an error) failed" in str(plain)
    assert nvme_status(0x80) == "LBA out of range (0x80)"


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """An image of 4 MiB with the signature of an ext4 filesystem, and a block device of it."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(4 * MIB)
        file.seek(0x438)
        file.write(b"\x53\xef")
    losetup = shutil.which("losetup", path=f"{os.environ.get('PATH', os.defpath)}:/sbin:/usr/sbin")
    if os.geteuid() != 0 or losetup is None:
        pytest.skip("needs losetup and the right to use it")
    made = subprocess.run([losetup, "-f", "--show", str(image)], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"losetup: {made.stderr.strip()}")
    yield image, Path(made.stdout.strip())
    subprocess.run([losetup, "-d", made.stdout.strip()], check=True)


@pytest.mark.parametrize("driver", ["uring", "threads"])
@pytest.mark.parametrize("force", [None, "S4XANX0R"])
def test_block_device_with_contents_is_refused_and_unchanged(
    loop: tuple[Path, Path], driver: str, force: str | None
) -> None:
    image, device = loop
    before = image.read_bytes()
    with pytest.raises(DeviceInUseError, match=r"it holds .*ext") as caught:
        BlockStore(device, driver=driver, force=force)  # not its serial number: a loop device has none
    assert caught.value.device == str(device)
    assert image.read_bytes() == before


@pytest.fixture
def false_namespace(tmp_path: Path, loop: tuple[Path, Path]) -> tuple[Path, Path]:
    """A file named like a passthrough device, and its block device, which is a real one."""
    image, device = loop
    with image.open("r+b") as file:
        file.write(bytes(4 * MIB))
    folder = tmp_path / "dev"
    folder.mkdir()
    named, block = folder / "ng7n1", folder / "nvme7n1"
    try:
        os.mknod(named, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(block, 0o600 | stat.S_IFBLK, device.stat().st_rdev)
        block.read_bytes()
    except PermissionError:
        pytest.skip("needs the right to make devices")
    return named, block


def test_namespace_is_claimed_only_while_the_store_is_open(false_namespace: tuple[Path, Path]) -> None:
    named, block = false_namespace
    for place in (f"nvme:{named}", f"nvme:{block}"):
        with pytest.raises(
            TransferError, match=r"is not an NVMe namespace .*: expected one such as /dev/ng0n1"
        ) as caught:
            BlockStore(place)
        assert caught.value.filename == str(named)
        os.close(os.open(block, os.O_RDONLY | os.O_EXCL))  # no longer claimed
    held = os.open(block, os.O_RDONLY | os.O_EXCL)
    try:
        with pytest.raises(DeviceInUseError, match="in use"):
            BlockStore(f"nvme:{named}")
    finally:
        os.close(held)


def test_namespace_with_unreadable_contents_is_refused(false_namespace: tuple[Path, Path]) -> None:
    named, block = false_namespace
    block.unlink()
    with pytest.raises(DeviceInUseError, match="contents cannot be read"):
        BlockStore(f"nvme:{named}")


def test_missing_permission_raises_an_error_with_the_cure(false_namespace: tuple[Path, Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for path in false_namespace:
            found = path.stat()
            os.mknod(f"{folder}/{path.name}", found.st_mode, found.st_rdev)
        place = f"{folder}/{false_namespace[0].name}"
        os.seteuid(65534)
        try:
            with pytest.raises(TransferError, match="run as root, or give this user the device") as caught:
                BlockStore(f"nvme:{place}")
        finally:
            os.seteuid(0)
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, place)


def test_same_place_twice_raises_an_error(loop: tuple[Path, Path]) -> None:
    image, device = loop
    with image.open("r+b") as file:
        file.write(bytes(4 * MIB))
    with pytest.raises(DeviceInUseError, match="in use"):
        BlockStore([device, device])
    with BlockStore(device) as store:
        data = torch.arange(1000)
        store.write(0, data.data_ptr(), data.nbytes)
        store.wait(0)
