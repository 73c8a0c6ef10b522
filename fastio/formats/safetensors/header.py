"""Parses the header of a ``.safetensors`` file: JSON as the library's parser (serde_json) accepts it.

Python's parser accepts more: UTF-16 and UTF-32, NaN and infinities, lone surrogates, -0 as an integer, numbers of any
size, and nesting of any depth. :func:`canonical_parts` is for what most programs write, in a third of the time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

_DEEPEST = 125  # levels below a field of an entry: serde_json's limit is 127 in all
_PART = 64 << 10  # bytes that are parsed at once: memory that is used again costs less than memory that is new
_LARGEST = 1 << 1024  # integers from here on are larger than any float


def canonical_parts(header: bytes) -> Iterator[dict[str, Any]]:
    """Yield the object of a header that is written as orjson, and serde_json, would write it: some entries at a time.

    ValueError or TypeError for other bytes, with which nothing need be wrong: written with spaces, say, or with numbers
    that orjson rounds. Text that is the same once it was parsed and written again has no second reading; a name may
    occur in several parts.
    """
    import orjson  # here, as `import fastio` does not need it

    end = header.rfind(b"}")
    if header[:1] != b"{" or header[end + 1 :].strip(b" "):
        raise ValueError("no object, or white space")
    at = 1
    while at < end:
        # Members in braces, between commas, are members of the whole: a cut inside of text or of an entry is no JSON.
        cut = header.find(b'},"', at + _PART, end)
        stop = end if cut < 0 else cut + 1
        text = b"{%b}" % header[at:stop]
        found = orjson.loads(text)
        if orjson.dumps(found) != text:
            raise ValueError("not as it would be written")
        yield found
        at = stop + 1


def parse(header: bytes) -> Any:
    """Return the JSON value of the bytes. ValueError or RecursionError if the library would not accept them."""
    text = header.decode()
    return json.loads(
        text,
        object_pairs_hook=_unique,
        parse_constant=_refuse_constant,
        parse_float=_finite,
        parse_int=_integer if "-0" in text else None,
    )


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
