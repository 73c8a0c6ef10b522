"""Sizes: as callers write them, and as people read them."""

from __future__ import annotations


def check_count(name: str, count: object, expected: str) -> None:
    """ValueError for an argument that is neither None nor a whole number of at least 1."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"{name}={count!r}: expected {expected}")


def parsed(size: int | str | None, name: str) -> int | None:
    """Bytes of 8, "8GiB", "1.5 GB" or None, of that argument. ValueError for what is none of these, or negative."""
    from fastio.offload.arguments import parsed_bytes

    return parsed_bytes(size, name) if size is not None else None


def readable(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} GB"
