"""Sizes: as callers write them, and as people read them."""

from __future__ import annotations


def parsed(size: int | str | None) -> int | None:
    """Bytes of 8, "8GiB", "1.5 GB" or None. ValueError for what is none of these, or negative."""
    from fastio.offload.arguments import parsed_bytes

    return parsed_bytes(size) if size is not None else None


def readable(nbytes: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} GB"
