"""Parses the header of ``.npy`` files, a Python literal, without Python's parser.

It accepts the literals that numpy and other programs write: no escapes, comments, parentheses or numbers in other
bases. ``ast`` is not thread-safe: CPython before 3.11.9 and 3.12.3 may raise SystemError ("AST constructor recursion
depth mismatch"), in numpy.load too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_SPACE = r"[ \t\n\r\f]*"
_STRING = r"""[uU]?'[^'"\\\x00\n\r]*'|[uU]?"[^'"\\\x00\n\r]*\""""
_FIELD = re.compile(rf"(?P<name>{_STRING}){_SPACE}:{_SPACE}(?P<value>{_STRING}|True|False|\([^()]*\))")
_NUMBER = re.compile(r"(0|[1-9][0-9]*)(L?)")  # Python 2 wrote 5L
_BETWEEN = re.compile(f"{_SPACE},{_SPACE}")
_BEGIN = re.compile(rf"[ \t]*[\n\r\f]*{{{_SPACE}")
_END = re.compile(rf"{_SPACE}(?:,{_SPACE})?}}{_SPACE}")  # adjacent stars would backtrack over all splits of the spaces
# A list describes records; a tuple describes arrays of a dtype, or has parentheses around a name.
_COMPOUND = re.compile(rf"['\"]descr['\"]{_SPACE}:{_SPACE}[\[(]")


class NpyHeader(NamedTuple):
    """``description`` is numpy's name of the dtype ("<f4"), or None for a compound one: then no other field is read."""

    description: str | None
    fortran_order: bool
    shape: tuple[int, ...]


def parse(text: bytes, version: int) -> NpyHeader:
    """Parse a header of the format's ``version`` (1, 2 or 3). Raises ValueError with the text that was found."""
    written = text.decode("utf-8" if version == 3 else "latin-1")
    if _COMPOUND.search(written):
        return NpyHeader(None, False, ())
    fields = _fields(written)
    description, fortran_order, shape = (fields.get(name, "") for name in ("descr", "fortran_order", "shape"))
    valid = description[-1:] in ("'", '"') and fortran_order in ("True", "False") and shape[:1] == "("
    if not valid or len(fields) != 3:
        raise ValueError(f"expected descr, fortran_order and shape, found {written[:200]!r}")
    return NpyHeader(_text(description), fortran_order == "True", _lengths(shape, version))


def _lengths(shape: str, version: int) -> tuple[int, ...]:
    """Parse a tuple of numbers; a single number without a comma is not a tuple."""
    *pieces, last = (piece.strip(" \t\n\r\f") for piece in shape[1:-1].split(","))
    if last:
        pieces.append(last)
    numbers = [_NUMBER.fullmatch(piece) for piece in pieces]
    if (last and len(pieces) == 1) or not all(n and (not n[2] or version < 3) for n in numbers):
        raise ValueError(f"found {shape[:200]!r}, which is no shape")
    return tuple(int(number[1]) for number in numbers if number)


def _text(literal: str) -> str:
    """The value of a string literal without escapes."""
    return literal.lstrip("uU")[1:-1]


def _fields(written: str) -> dict[str, str]:
    """The values of a flat dict, as literals."""
    fields: dict[str, str] = {}
    at = _BEGIN.match(written)
    while at and (field := _FIELD.match(written, at.end())):
        fields[_text(field["name"])] = field["value"]
        if _END.fullmatch(written, field.end()):
            return fields
        at = _BETWEEN.match(written, field.end())
    raise ValueError(f"found {written[:200]!r}, which is no dict of strings, booleans and shapes")
