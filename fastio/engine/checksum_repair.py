"""Checksum repair after a write by a tool that computes no checksums on the way.

If another thread changes the memory during the save, the file may hold other bytes than those whose CRC-32 was
computed. So the file is read back, and a CRC that does not match its bytes is replaced. A note in the result says so.
"""

from __future__ import annotations

from fastio.engine.record_checksums import record_checksums
from fastio.files.full_write import write_all
from fastio.formats.layout import Layout
from fastio.formats.pt.crc_places import crc_places
from fastio.formats.pt.reader import NeedsTorchError, open_archive


def reseal(layout: Layout, values: list[int], path: str, fd: int) -> tuple[str, ...]:
    """Correct the CRCs of the extents in the file that a layout was written to, and in ``values``.

    Returns notes. TransferError if the system refuses.
    """
    indices = [index for index, extent in enumerate(layout.extents) if extent.checksum]
    found = record_checksums(path, fd, [layout.extents[index] for index in indices], layout.size, {})
    changed = {index: value for index, value in zip(indices, found, strict=True) if value != values[index]}
    for index, value in changed.items():
        values[index] = value
    for offset, index in layout.patches:
        if index in changed:
            _put(path, fd, offset, changed[index])
    return _notes(len(changed))


def reseal_archive(path: str, fd: int, size: int) -> tuple[str, ...]:
    """Correct the CRCs of all records of a ``.pt`` file that torch has just written. Returns notes.

    TransferError if the system refuses.
    """
    try:
        archive = open_archive(path, fd, size, read_local_headers=True)
    except NeedsTorchError:
        return ()  # torch.save did not write it
    if not archive.checksummed:
        return ()
    records = sorted((r for r in archive.records.values() if r.nbytes), key=lambda record: record.offset)
    found = record_checksums(path, fd, records, size, {})
    changed = [(record, value) for record, value in zip(records, found, strict=True) if value != record.crc]
    places = crc_places(archive) if changed else {}
    for record, value in changed:
        for place in places[record.name]:
            _put(path, fd, place, value)
    return _notes(len(changed))


def _notes(changed: int) -> tuple[str, ...]:
    if not changed:
        return ()
    which = "one checksum is" if changed == 1 else f"{changed} checksums are"
    return (f"{which} of what the file has: the memory changed while it was written",)


def _put(path: str, fd: int, offset: int, value: int) -> None:
    write_all(path, fd, memoryview(value.to_bytes(4, "little")), offset)
