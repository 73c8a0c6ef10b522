"""All settings, in one table: name, environment variable, default, meaning.

Each use of a setting reads the environment, so tests and parent processes can change it.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One row of the table. ``default`` also gives the type (int or str)."""

    name: str
    environment: str
    default: int | str
    meaning: str


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("dictionary_dir", "FASTIO_DICTIONARY_DIR", "", "folder of learned dictionaries; empty: the user cache"),
        Setting("policy", "FASTIO_POLICY", "auto", "what policy='auto' means: auto, or the name of a tool"),
        Setting("renew", "FASTIO_RENEW", "", "renew dictionaries: empty for never, '5000' calls, '3600s' seconds"),
        Setting("io_threads", "FASTIO_IO_THREADS", 2, "threads that copy through the page cache"),
    )
}


_MOST = 256  # threads, the largest number


def get(name: str) -> Any:
    """The value of a setting, of its default's type. An invalid number is ignored, with a warning."""
    setting = SETTINGS[name]
    text = os.environ.get(setting.environment)
    if text is None:
        return setting.default
    if isinstance(setting.default, int):
        if text.strip().isdecimal() and len(text) < 10 and 1 <= int(text) <= _MOST:
            return int(text)
        said = f"{setting.environment}={text!r} is ignored: expected a whole number from 1 to {_MOST}"
        warnings.warn(f"{said}; using the default {setting.default}", RuntimeWarning, stacklevel=2)
        return setting.default
    return text
