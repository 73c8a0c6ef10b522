"""npy files with unusual headers, by their names in the tests and in docs/acceptance.md."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable

import numpy as np

from acceptance.literals import DIMENSIONS, LENGTHS, LITERALS, ORDERS, PLAIN, SHAPES, TEXTS, TYPES, WIDE_TYPES

_DATA = np.arange(6, dtype="<f4").tobytes()


def raw(header: bytes, data: bytes = _DATA, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    """A file with these header bytes; ``length`` replaces their length."""
    said = len(header) if length is None else length
    return b"\x93NUMPY" + bytes(version) + said.to_bytes(2 if version[0] == 1 else 4, "little") + header + data


def text(header: str, data: bytes = _DATA, version: tuple[int, int] = (1, 0)) -> bytes:
    """A file with this header text."""
    return raw(header.encode("utf-8" if version[0] == 3 else "latin-1", "replace"), data, version)


def said(
    descr: str = "'<f4'", order: str = "False", shape: str = "(2, 3)", data: bytes = _DATA, version: int = 1
) -> bytes:
    """A file whose header has these literals."""
    return text(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n", data, (version, 0))


def _saved(array: np.ndarray, *more: np.ndarray) -> bytes:
    stream = io.BytesIO()
    for one in (array, *more):
        np.save(stream, one)
    return stream.getvalue()


def _padded(length: int, version: int) -> bytes:
    start = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    return text(start.ljust(length - 1) + "\n", version=(version, 0))


def _typed(name: str) -> bytes:
    """A file with two elements of a dtype; unknown dtypes count 4 bytes per element."""
    try:
        width = np.dtype(ast.literal_eval(f"'{name}'")).itemsize
    except Exception:
        width = 4
    return said(f"'{name}'", shape="(2,)", data=bytes(range(2 * width)))


def _saved_objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([None, 1], dtype=object), allow_pickle=True)
    return stream.getvalue()


ROWS: dict[str, Callable[[], bytes]] = {
    "as numpy writes it": lambda: _saved(np.arange(6, dtype="<f4").reshape(2, 3)),
    "in Fortran's order": lambda: _saved(np.asfortranarray(np.arange(6, dtype="<f4").reshape(2, 3))),
    "nothing": lambda: b"",
    "magic alone": lambda: b"\x93NUMPY",
    "magic and version": lambda: b"\x93NUMPY\1\0",
    "another magic": lambda: b"\x93NUMPX" + said()[6:],
    **{
        f"version {v}": lambda v=v: text(PLAIN + "\n", version=v)
        for v in ((0, 0), (1, 1), (2, 0), (2, 1), (3, 0), (4, 0), (255, 255))
    },
    "header longer than the file": lambda: raw(PLAIN.encode(), b"", length=9999),
    "header of 2^32 - 1 bytes": lambda: raw(PLAIN.encode(), version=(2, 0), length=(1 << 32) - 1),
    "header said a byte shorter": lambda: raw(PLAIN.encode() + b"\n", length=len(PLAIN) - 1),
    **{f"header of {n} bytes, {v}.0": lambda n=n, v=v: _padded(n, v) for n in LENGTHS for v in (1, 2, 3)},
    "header of 100000 bytes": lambda: _padded(100_000, 2),
    **{f"dtype {t!r}": lambda t=t: _typed(t) for t in TYPES},
    **{f"dtype {t!r} of nothing": lambda t=t: said(f"'{t}'", "False", "(0,)", b"") for t in WIDE_TYPES},
    **{f"descr {d!r}": lambda d=d: said(d) for d in LITERALS},
    **{f"order {o!r}": lambda o=o: said(order=o) for o in ORDERS},
    **{f"shape {s!r}": lambda s=s: said(shape=s) for s in SHAPES},
    **{f"shape {s!r} of nothing": lambda s=s: said(shape=s, data=b"") for s in SHAPES},
    **{f"shape {s!r}, version 3": lambda s=s: said(shape=s, version=3) for s in ("(2L, 3)", "(6,)")},
    **{f"{n} dimensions": lambda n=n: said(shape="(2, 3, " + "1, " * (n - 2) + ")") for n in DIMENSIONS},
    "64 dimensions of nothing": lambda: said(shape="(0, " + "1, " * 63 + ")", data=b""),
    "65 dimensions of nothing": lambda: said(shape="(0, " + "1, " * 64 + ")", data=b""),
    "64 dimensions in Fortran's order": lambda: said(shape="(2, 3, " + "1, " * 62 + ")", order="True"),
    "no data": lambda: said(data=b""),
    "a byte missing": lambda: said(data=_DATA[:-1]),
    "a byte behind": lambda: said(data=_DATA + b"\0"),
    "two arrays": lambda: _saved(np.arange(3), np.arange(4)),
    "an object array": _saved_objects,
    "a scalar": lambda: said(shape="()", data=_DATA[:4]),
    "a scalar in Fortran's order": lambda: said(shape="()", order="True", data=_DATA[:4]),
    "a boolean of 2": lambda: said("'|b1'", shape="(2,)", data=b"\2\1"),
    **{f"header: {name}": lambda t=t: text(t) for name, t in TEXTS.items()},
    "header in 3.0: newlines": lambda: text(TEXTS["newlines"], version=(3, 0)),
    "header in 3.0: trailing no-break space": lambda: text(TEXTS["trailing no-break space"], version=(3, 0)),
    "header that is not UTF-8 in 3.0": lambda: raw(PLAIN.encode() + b" # \xff", version=(3, 0)),
    "header that is not UTF-8 in 1.0": lambda: raw(PLAIN.encode() + b" # \xff"),
    "byte order mark": lambda: raw(b"\xef\xbb\xbf" + PLAIN.encode(), version=(3, 0)),
}  # fmt: skip
