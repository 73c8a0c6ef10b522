"""Parses the header of a ``.safetensors`` file: JSON as the library's parser (serde_json) accepts it.

Python's parser accepts more: UTF-16 and UTF-32, NaN and infinities, lone surrogates, -0 as an integer, numbers of any
size, and nesting of any depth. Headers as most programs write them are parsed in a tenth of the time by native code
(:func:`fastio._native.header_rows`); this is for all others.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_DEEPEST = 125  # levels below a field of an entry: serde_json's limit is 127 in all
_LARGEST = 1 << 1024  # integers from here on are larger than any float


def parse(header: bytes) -> Any:
    """Return the JSON value of the bytes. ValueError or RecursionError if the library would not accept them."""
    text = header.decode()
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_integer if "-0" in text else None,
        )
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):  # Python's own limit, of 4300 digits
            raise ValueError("a number is too large") from None
        raise


def check_ignored(fields: list[tuple[str, Any]]) -> None:
    """Raise ValueError for values that no safetensors file may hold, even in fields that have no meaning."""
    level: list[Any] = [item for pair in fields for item in pair]
    for _ in range(_DEEPEST + 1):
        if not level:
            return
        deeper: list[Any] = []
        for value in level:
            if isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise ValueError(f"text that is not Unicode: {error.reason}") from None
            elif isinstance(value, int) and abs(value) >= _LARGEST:
                raise ValueError("a number that is too large")
            elif isinstance(value, list):
                deeper += value
            elif isinstance(value, dict):
                deeper += [item for pair in value.items() for item in pair]
        level = deeper
    raise ValueError("more levels than the format allows")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _integer(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)
