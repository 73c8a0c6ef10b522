"""All settings, in one table: name, environment variable, default, meaning.

Each use of a setting reads the environment, so tests and parent processes can change it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from fastio import processors

# A thread copies 5 to 7 GB/s from the page cache, and moves three times that through memory: so many use up the
# bandwidth of a processor's memory.
_MOST_USEFUL_THREADS = 16


def io_threads() -> int:
    """The default number of I/O threads: one for each processor that this process may use, 16 at most."""
    return min(processors.count(), _MOST_USEFUL_THREADS)


class Setting(NamedTuple):
    """One row of the table. ``default`` is an int or a str, which gives the type, or a function that returns an int."""

    name: str
    environment: str
    default: Callable[[], int] | int | str
    meaning: str


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("dictionary_dir", "FASTIO_DICTIONARY_DIR", "", "folder of learned dictionaries; empty: the user cache"),
        Setting("policy", "FASTIO_POLICY", "auto", "what policy='auto' means: auto, or the name of a tool"),
        Setting("renew", "FASTIO_RENEW", "", "renew dictionaries: empty for never, '5000' calls, '3600s' seconds"),
        Setting("cache", "FASTIO_CACHE", "", "folder for copies of remote files; empty: the user cache"),
        Setting("cache_size", "FASTIO_CACHE_SIZE", "64GiB", "the most that copies of remote files take, as '64GiB'"),
        Setting("io_threads", "FASTIO_IO_THREADS", io_threads, "threads that move and check the bytes of one file"),
    )
}


_MOST = 256  # threads, the largest number


def get(name: str) -> Any:
    """The value of a setting, of its default's type. An invalid number is ignored, with a warning."""
    setting = SETTINGS[name]
    text = os.environ.get(setting.environment)
    default = setting.default
    if text is not None:
        if isinstance(default, str):
            return text or default
        if text.strip().isdecimal() and len(text) < 10 and 1 <= int(text) <= _MOST:
            return int(text)
    value = default() if callable(default) else default
    if text is not None:
        said = f"{setting.environment}={text!r} is ignored: expected a whole number from 1 to {_MOST}"
        warnings.warn(f"{said}; using the default {value}", RuntimeWarning, stacklevel=2)
    return value
