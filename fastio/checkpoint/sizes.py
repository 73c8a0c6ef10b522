"""Parses sizes and counts given by callers, and formats sizes for messages."""

from __future__ import annotations


def check_count(name: str, count: object, expected: str) -> None:
    """Raise ValueError for an argument that is neither None nor an integer of at least 1."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"{name}={count!r}: expected {expected}")


def parsed(size: int | str | None, name: str) -> int | None:
    """Return the bytes of a size such as 8, "8GiB" or "1.5 GB"; None for None. ValueError, with ``name``, otherwise."""
    from fastio.offload.arguments import parsed_bytes

    return parsed_bytes(size, name) if size is not None else None


def readable(nbytes: float) -> str:
    """Return a size as text with a unit."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} GB"
