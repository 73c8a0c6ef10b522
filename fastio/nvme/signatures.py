"""Finds what a device holds by its signatures: filesystems, RAID and LVM members, partition tables.

``blkid -p`` of util-linux knows hundreds; the table here has those that are common on SSDs. Both are used, and whatever
either finds must not be overwritten. ``wipefs --all`` removes what either finds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

# (offset, nbytes) -> bytes of the device. Both are multiples of 4096, except at the end of a device whose size is not.
Reader = Callable[[int, int], bytes]

_BLOCK = 4096
_KIB = 1024
_ZFS_LABEL, _ZFS_UBERBLOCKS, _ZFS_MAGIC = 256 * _KIB, 128 * _KIB, (b"\x0c\xb1\xba\0\0\0\0\0", b"\0\0\0\0\0\xba\xb1\x0c")
_MD_MAGIC = (b"\xfc\x4e\x2b\xa9", b"\xa9\x2b\x4e\xfc")  # little and, in version 0.90 alone, big endian
_BCACHE = bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81")
_BCACHEFS = bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef")

# Name, byte offset, and the bytes there.
_TABLE: tuple[tuple[str, int, bytes], ...] = (
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),  # with blocks of 4096 bytes
    ("an ext2, ext3 or ext4 filesystem", 0x438, b"\x53\xef"),
    ("an xfs filesystem", 0, b"XFSB"),
    ("a btrfs filesystem", 0x10040, b"_BHRfS_M"),
    *(
        ("swap space", page - 10, magic)
        for page in (4096, 8192, 16384, 65536)
        for magic in (b"SWAPSPACE2", b"SWAP-SPACE")
    ),
    *(("an LVM2 physical volume", sector * 512 + 24, b"LVM2 001") for sector in range(4)),
    ("an mdraid member", 0, _MD_MAGIC[0]),  # version 1.1
    ("an mdraid member", 4096, _MD_MAGIC[0]),  # version 1.2
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("a LUKS volume", 16384, b"SKUL\xba\xbe"),  # the second header of LUKS2
    ("an f2fs filesystem", 0x400, b"\x10\x20\xf5\xf2"),
    ("an NTFS filesystem", 3, b"NTFS    "),
    ("an exFAT filesystem", 3, b"EXFAT   "),
    ("a BitLocker volume", 3, b"-FVE-FS-"),
    ("a FAT filesystem", 0x36, b"FAT1"),
    ("a FAT filesystem", 0x52, b"FAT32   "),
    ("a squashfs filesystem", 0, b"hsqs"),
    ("an erofs filesystem", 0x400, b"\xe2\xe1\xf5\xe0"),
    ("an ISO 9660 filesystem", 0x8001, b"CD001"),
    ("a UDF filesystem", 0x8001, b"BEA01"),
    ("a bcachefs filesystem", 0x1018, _BCACHEFS),
    ("a bcache or bcachefs device", 0x1018, _BCACHE),
    ("an APFS container", 32, b"NXSB"),
    ("a fastio volume", 0, b"FASTIOVO"),
    ("a fastio volume", 4096, b"FASTIOVO"),
    ("a Ceph BlueStore device", 0, b"bluestore block device\n"),
    ("a partition table or boot sector", 510, b"\x55\xaa"),  # last, because FAT, NTFS and GPT have it too
)


def found(read: Reader, nbytes: int) -> str:
    """Return what a device of ``nbytes`` holds, such as "an xfs filesystem (at byte 0)"; "" if no signature is known.

    Errors of ``read`` are raised: a device that cannot be read is not empty.
    """
    for what, offset in _all(read, nbytes):
        return f"{what} (at byte {offset})"
    return ""


def of_file(path: str) -> str:
    """Return what the device or image file at ``path`` holds, by the table and blkid; "" if neither finds anything.

    Raises OSError if it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        nbytes = os.lseek(fd, 0, os.SEEK_END)
        return found(lambda offset, count: _read_all(fd, offset, count), nbytes) or _by_blkid(path)
    finally:
        os.close(fd)


def _all(read: Reader, nbytes: int) -> Iterator[tuple[str, int]]:
    head = read(0, min(nbytes, 68 * _KIB))
    for what, offset, magic in _TABLE:
        if head[offset : offset + len(magic)] == magic:
            yield what, offset
    for place in _md_at_the_end(nbytes):
        block = _slice(read, nbytes, place, 4)
        if block in _MD_MAGIC:
            yield "an mdraid member", place
    for block_nbytes in (512, _BLOCK):  # the backup table, which survives if only the beginning is wiped
        if _slice(read, nbytes, nbytes - block_nbytes, 8) == b"EFI PART":
            yield "the second copy of a GPT partition table", nbytes - block_nbytes
    end = nbytes // _ZFS_LABEL * _ZFS_LABEL
    for label in sorted({0, _ZFS_LABEL, end - 2 * _ZFS_LABEL, end - _ZFS_LABEL}):
        if 0 <= label <= nbytes - _ZFS_LABEL:
            ring = read(label + _ZFS_UBERBLOCKS, _ZFS_LABEL - _ZFS_UBERBLOCKS)
            for slot in range(0, len(ring), _KIB):
                if ring[slot : slot + 8] in _ZFS_MAGIC:
                    yield "a ZFS pool's member", label + _ZFS_UBERBLOCKS + slot


def _md_at_the_end(nbytes: int) -> tuple[int, ...]:
    """Return where versions 1.0 and 0.90 keep their superblock: linux, drivers/md/md.c."""
    sectors = nbytes // 512
    return tuple(sector * 512 for sector in ((sectors - 16) & ~7, (sectors & ~127) - 128) if sector > 0)


def _slice(read: Reader, nbytes: int, offset: int, count: int) -> bytes:
    """Return ``count`` bytes (within one block) at ``offset``, read by whole blocks; b"" outside the device."""
    if offset < 0 or offset + count > nbytes:
        return b""
    block = offset // _BLOCK * _BLOCK
    return read(block, min(_BLOCK, nbytes - block))[offset - block :][:count]


def _read_all(fd: int, offset: int, count: int) -> bytes:
    pieces = []
    while count > 0:
        piece = os.pread(fd, count, offset)
        if not piece:
            raise OSError(f"the device ended {count} bytes before its size")
        pieces.append(piece)
        offset, count = offset + len(piece), count - len(piece)
    return b"".join(pieces)


def _by_blkid(path: str) -> str:
    """Return what blkid finds; "" if it finds nothing, or is not installed."""
    tool = shutil.which("blkid", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/sbin", "/usr/sbin"]))
    if tool is None:
        return ""
    child = subprocess.run([tool, "-p", "-o", "export", path], check=False, capture_output=True, text=True)
    if child.returncode == 8:
        return "signatures of several kinds (by blkid)"
    fields = dict(line.split("=", 1) for line in child.stdout.splitlines() if "=" in line)
    kind = fields.get("TYPE") or fields.get("PTTYPE")
    if child.returncode != 0 or kind is None:
        return ""
    return f"{kind}, {fields.get('USAGE', 'a partition table')} (by blkid)"
