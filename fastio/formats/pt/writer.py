"""Lays out a ``.pt`` file for any transport to fill, byte for byte as torch does with the same alignment.

Large storages start on a page.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from typing import Any

import torch

from fastio._native import ZipBuilder
from fastio.formats.layout import Layout, LayoutBuilder
from fastio.formats.pt.records import Records, pickled
from fastio.runtime.gc_pause import gc_paused

PAGE = 4096
ARGUMENTS = {"pickle_protocol", "_disable_byteorder_record", "pickle_module"}  # torch.save's that change the layout
_TORCH_ALIGNMENT = 64
# Storages start on pages only if that pads the file by no more than this share of their bytes.
_LARGEST_WASTE = 1 / 8
# A storage of up to this many bytes is cheaper to copy among the file's literal bytes than to move as an extent.
_LARGEST_COPY = 8 << 10
# Padding and copies are held in memory during the save, and a load holds the padding again. This bounds both, in bytes.
_MOST_HELD = 32 << 20
# Bytes that the zip format adds to a storage (approximate), and those of them that lie between two storages, without
# the name.
_HEADERS = 256
_BETWEEN = 50
# Bytes of the folder's name inside the zip: as many as a file's name has. torch's reader takes 512 of a record's name.
_LONGEST_ARCHIVE = 255


def layout(
    obj: Any,
    path: str,
    pickle_protocol: int = 2,
    _disable_byteorder_record: bool = False,
    pickle_module: Any = pickle,
) -> Layout:
    """Pickle ``obj`` as torch.save does and lay the file out; storages stay where they are, on any device.

    An object that cannot be pickled raises what torch.save raises.
    """
    with gc_paused():
        records = pickled(obj, pickle_protocol, _disable_byteorder_record, pickle_module)
        return lay_out(records, archive_name(path))


def lay_out(records: Records, archive: str, read: bool = True) -> Layout:
    """Return the layout of a file of these records; ``archive`` is the folder inside it.

    ``read``: small storages are copied among the literal bytes now. Without, no storage is read: all are extents.
    """
    sizes = [nbytes for _, _, nbytes in records.storages]
    padding = _page_padding(records, archive)
    paged = any(sizes) and padding <= min(sum(sizes) * _LARGEST_WASTE, _MOST_HELD)
    alignment, held = (PAGE, padding) if paged else (_TORCH_ALIGNMENT, 0)
    largest = _LARGEST_COPY if read else 0
    while (small := sum(nbytes for nbytes in sizes if nbytes <= largest)) > _MOST_HELD - held:
        largest //= 2
    zip_file = ZipBuilder(archive, alignment)
    zip_file.reserve(held + small + _HEADERS * len(sizes))
    builder = LayoutBuilder()
    identity = hashlib.blake2b(digest_size=16)
    for name, data in records.small:
        record = str(alignment).encode() if name == ".storage_alignment" else data
        identity.update(name.encode() + record)
        zip_file.add_bytes(name, record)
    copied = 0
    cpu = torch.device("cpu")
    for name, storage, nbytes in records.storages:
        if not nbytes or (nbytes <= largest and storage.device == cpu):  # nothing lies nowhere: no transport moves it
            copied += nbytes
            zip_file.add_memory(name, storage.data_ptr(), nbytes)
        else:
            builder.add_storage(zip_file.add_extent(name, nbytes), storage, nbytes, name, checksum=True)
    builder.add_payload(copied)
    zip_file.add_bytes("version", b"3\n")
    zip_file.add_bytes(".data/serialization_id", str(int.from_bytes(identity.digest(), "big")).zfill(40)[:40].encode())
    zip_file.finish()
    return builder.build(memoryview(zip_file), zip_file.runs(), zip_file.patches(), zip_file.size)._replace(
        trimmed=records.trimmed
    )


def _page_padding(records: Records, archive: str) -> int:
    """Return the padding in bytes if every storage starts on a page: nearly a page each if sizes are whole pages."""
    headers = _BETWEEN + len(archive) + len("/")
    return sum(-(nbytes + headers + len(name)) % PAGE for name, _, nbytes in records.storages)


def archive_name(path: str) -> str:
    """Return the folder name inside the zip, which torch derives from the file's name.

    Names of objects may be longer than torch's reader takes, or have a NUL, which ends a name there.
    """
    base = os.path.basename(path)
    name = base.rpartition(".")[0] if "." in base else base
    return name if name and name.isascii() and "\0" not in name and len(name) <= _LONGEST_ARCHIVE else "archive"
