"""The header of ``.npy``: a literal of Python, read without Python's parser.

``ast`` is not for several threads at once: CPython before 3.11.9 and 3.12.3 may then raise SystemError ("AST
constructor recursion depth mismatch"), in numpy.load too.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

_FIELDS = {"descr", "fortran_order", "shape"}
# Strings without escapes; numbers, which Python 2 wrote as 5L; what holds them together.
_TOKEN = re.compile(
    r"""\s*(?:'(?P<single>[^'\\]*)'|"(?P<double>[^"\\]*)"|(?P<number>\d+)L?|(?P<other>True|False|\S))"""
)
_IN_JSON = {"True": "true", "False": "false", "(": "[", ")": "]"}
_LAST_COMMA = re.compile(r",\s*(?=[\]}])")


class NpyHeader(NamedTuple):
    """``description`` is the dtype in numpy's words ("<f4"), None for one with fields."""

    description: str | None
    fortran_order: bool
    shape: tuple[int, ...]


def parse(text: bytes, version: int) -> NpyHeader:
    """Read the text of a header of the format's ``version`` (1, 2 or 3). ValueError says what it is instead."""
    written = text.decode("utf-8" if version == 3 else "latin-1").strip()
    pieces = []
    for token in _TOKEN.finditer(written):
        string = token["single"] if token["single"] is not None else token["double"]
        if string is not None:
            # Its commas are no last ones of a list.
            pieces.append(json.dumps(string).replace(",", "\\u002c"))
        else:
            pieces.append(token["number"] or _IN_JSON.get(token["other"], token["other"]))
    try:
        fields = json.loads(_LAST_COMMA.sub("", " ".join(pieces)))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no literal: {error}") from None
    if not isinstance(fields, dict) or fields.keys() != _FIELDS:
        raise ValueError(f"expected the fields {', '.join(sorted(_FIELDS))}, found {written[:200]!r}")
    description, fortran_order, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if not isinstance(description, str | list) or not isinstance(fortran_order, bool):
        raise ValueError(f"descr is {description!r} and fortran_order {fortran_order!r}")
    if not isinstance(shape, list) or not all(type(length) is int for length in shape):
        raise ValueError(f"shape is {shape!r}")
    return NpyHeader(description if isinstance(description, str) else None, fortran_order, tuple(shape))
