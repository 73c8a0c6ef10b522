"""Whether large direct reads of a disk are faster through staging memory: measured, and kept beside the dictionaries.

Measuring it takes a gigabyte of reads (native/transfer/staging_choice.hpp), more than most processes load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastio._native import staging_adopt, staging_learned
from fastio.errors import DictionaryError

_MOST_NBYTES = 1 << 62
_MOST_SECONDS = 1e6


class Learned(NamedTuple):
    """What was measured. ``staged``: reads through staging memory are the faster ones.

    ``landing``: seconds for 10^9 bytes that are read directly into the tensors' memory, ``staging``: through staging
    memory; 0 if not measured. ``since``: bytes since the slower way was tried; ``spell``: bytes from one such trial to
    the next.
    """

    staged: bool
    landing: float
    staging: float
    since: int
    spell: int


def learned(device: int) -> Learned | None:
    """What this process measured on the device (``st_dev``); None without such reads."""
    found = staging_learned(device) if device >= 0 else None
    if found is None:
        return None
    staged, landing, staging, since, spell = found
    return Learned(staged, landing * 1e9, staging * 1e9, since, spell)


def adopt(device: int, known: Learned) -> None:
    """Continue from the measurements of another process, unless this one has its own."""
    if device >= 0:
        staging_adopt(device, known.staged, known.landing / 1e9, known.staging / 1e9, known.since, known.spell)


def plain(known: Learned) -> dict[str, Any]:
    """Plain data for JSON."""
    rounded = known._replace(landing=round(known.landing, 4), staging=round(known.staging, 4))
    return rounded._asdict()


def parse(text: object) -> Learned:
    """Parse plain data from a file; DictionaryError if it is malformed."""
    if isinstance(text, Mapping) and text.keys() >= set(Learned._fields):
        staged, landing, staging, since, spell = (text[name] for name in Learned._fields)
        if (
            type(staged) is bool
            and all(type(seconds) in (int, float) and 0 <= seconds <= _MOST_SECONDS for seconds in (landing, staging))
            and all(type(nbytes) is int and 0 <= nbytes <= _MOST_NBYTES for nbytes in (since, spell))
        ):
            return Learned(staged, landing, staging, since, spell)
    raise DictionaryError(f"not what is known of staging: {str(text)[:100]}")
