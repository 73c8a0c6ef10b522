"""pt files with unusual records: missing and extra ones, their names, and the contents of the small ones."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace

import numpy
import torch

from acceptance.zips import FOLDER, STATE, Member, build, changed, every, of_torch, without


def _more(*members: Member) -> bytes:
    return build([*of_torch(), *members])


def _first(member: Member) -> bytes:
    return build([member, *of_torch()])


def _extra(name: str, data: bytes = b"more", **fields: object) -> bytes:
    return _more(Member(name.encode(), data, **fields))  # type: ignore[arg-type]


def _renamed(change: Callable[[bytes], bytes]) -> bytes:
    return build(every(lambda member: replace(member, name=change(member.name))))


def _foreign() -> bytes:
    """A file from a machine with the other byte order."""
    swapped = {f"{FOLDER}/data/0": 4, f"{FOLDER}/data/1": 2}

    def swap(member: Member) -> Member:
        if member.name == f"{FOLDER}/byteorder".encode():
            return replace(member, data=b"big")
        width = swapped.get(member.name.decode())
        if width is None:
            return member
        pieces = [member.data[at : at + width][::-1] for at in range(0, len(member.data), width)]
        return replace(member, data=b"".join(pieces))

    return build(every(swap))


def _scripted() -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript itself
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)), stream)
    return stream.getvalue()


def _packaged() -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), torch.package.PackageExporter(stream) as exporter:
        warnings.simplefilter("ignore")  # of typed storages, which the exporter uses
        exporter.save_text("notes", "a.txt", "text")
        exporter.save_pickle("weights", "w.pkl", STATE)
    return stream.getvalue()


def _exported() -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own
        torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), stream)
    return stream.getvalue()


def _arrays() -> bytes:
    stream = io.BytesIO()
    numpy.savez(stream, x=numpy.arange(3))
    return stream.getvalue()


def _book() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("chapter/one.txt", "Call me Ishmael.")
    return stream.getvalue()


_VERSIONS = [b"0\n", b"1\n", b"2", b"3", b"10\n", b"11\n", b"99\n", b"-1\n", b"+3\n", b" 3\n", b"\t3", b"3junk", b"3.9"]
_VERSIONS += [b"03\n", b"0x3", b"3\0", b"junk", b"", b"\n", b"\xd9\xa3\n", b"1" * 30, b"18446744073709551619\n"]
_ALIGNMENTS = [b"64", b"4096", b" 64\n", b"6_4", b"+64", b"-64", b"0", b"junk", b"", b"64.0", b"\xd9\xa3", b"9" * 5000]
_ORDERS = [b"little", b"big", b"Little", b"little\n", b"", b"junk", b"\xff\xfe", b"little\0"]
_FOLDERS = ["archive", "", ".", "..", "A", "a b", "модель", "a\\b", "x" * 505, "x" * 515, "a.b"]
_EXTRAS = [
    "a/",
    "a/data/",
    "a/more.json",
    "a/META.json",
    "a/more/deep/file",
    "a//more",
    "a/../more",
    "a/ключ",
    "a/a\\b",
]
_EXTRAS += ["b/more", "/more", "more", "A/more", "a/DATA.PKL", "a/data/00", "a/constants.pkl", "a/CONSTANTS.PKL"]
_EXTRAS += ["a/x.debug_pkl", "a/" + "x" * 600, "a/" + "x" * 508 + "é", "a/data.pkl/", "a/more\0x", "a/data.pkl\0x", ""]

ROWS: dict[str, Callable[[], bytes]] = {
    "as torch writes it": lambda: build(of_torch()),
    **{f"version {v[:24]!r}": lambda v=v: build(changed("version", data=v)) for v in _VERSIONS if v != b"3\n"},
    "no version": lambda: build(without("version")),
    "version in .data alone": lambda: build([*without("version"), Member(b"a/.data/version", b"3\n")]),
    "version in .data counts": lambda: _extra("a/.data/version", b"99\n"),
    "version in .data counts, the good one": lambda: build(
        [*changed("version", data=b"99\n"), Member(b"a/.data/version", b"3\n")]
    ),
    **{
        f"alignment {a[:24]!r}": lambda a=a: build(changed(".storage_alignment", data=a))
        for a in _ALIGNMENTS
        if a != b"64"
    },
    "no alignment": lambda: build(without(".storage_alignment")),
    "format version 'junk'": lambda: build(changed(".format_version", data=b"junk")),
    **{f"byteorder {o!r}": lambda o=o: build(changed("byteorder", data=o)) for o in _ORDERS if o != b"little"},
    "no byteorder": lambda: build(without("byteorder")),
    "of the other byte order": _foreign,
    "no serialization id": lambda: build(without(".data/serialization_id")),
    "serialization id that is not UTF-8": lambda: build(changed(".data/serialization_id", data=b"\xff" * 40)),
    **{f"folder {f[:24]!r} of {len(f)}": lambda f=f: build(of_torch(f)) for f in _FOLDERS},
    **{f"also {e[:24]!r} of {len(e)}": lambda e=e: _extra(e) for e in _EXTRAS},
    "also a name that is not UTF-8": lambda: _more(Member(b"a/\xff\xfe", b"more")),
    "also a name that is a surrogate": lambda: _more(Member(b"a/\xed\xa0\x80", b"more")),
    "folder that is not UTF-8": lambda: _renamed(lambda name: name.replace(b"a/", b"\xff/", 1)),
    "names in upper case": lambda: _renamed(lambda name: b"a/" + name[2:].upper()),
    "pickle's name in mixed case": lambda: build(changed("data.pkl", name=b"a/Data.Pkl")),
    "storage's name in upper case": lambda: build(changed("data/0", name=b"a/DATA/0")),
    "version's name in upper case": lambda: build(changed("version", name=b"a/VERSION")),
    "folder in two cases": lambda: build(changed("data/0", name=b"A/data/0")),
    "storage twice": lambda: _more(Member(b"a/data/0", bytes(24))),
    "storage twice, the same": lambda: _more(of_torch()[4]),
    "storage in two cases": lambda: _more(Member(b"a/DATA/0", bytes(24))),
    "pickle twice": lambda: _extra("a/data.pkl", b"\x80\x02N."),
    "backslashes as separators": lambda: _renamed(lambda name: name.replace(b"/", b"\\")),
    "backslashes within the folder": lambda: _renamed(lambda name: b"a/" + name[2:].replace(b"/", b"\\")),
    "no folder": lambda: _renamed(lambda name: name[2:]),
    "absolute names": lambda: _renamed(lambda name: b"/" + name),
    "first record in another folder": lambda: _first(Member(b"z/more", b"more")),
    "first record in no folder": lambda: _first(Member(b"more", b"more")),
    "folder's own entry first": lambda: _first(Member(b"a/")),
    "in reverse order": lambda: build(of_torch()[::-1]),
    "no records": lambda: build([]),
    "no pickle": lambda: build(without("data.pkl")),
    "no storage": lambda: build(without("data/0")),
    "storage too short": lambda: build(changed("data/0", data=bytes(20))),
    "storage too long": lambda: build(changed("data/0", data=bytes(28))),
    "storage of nothing": lambda: build(changed("data/0", data=b"")),
    "empty pickle": lambda: build(changed("data.pkl", data=b"")),
    "of TorchScript": _scripted,
    "of torch.package": _packaged,
    "of torch.export": _exported,
    "of numpy.savez": _arrays,
    "of something else": _book,
}  # fmt: skip
