"""Defines the error for a plug-in whose library is not installed."""

from __future__ import annotations

from fastio.errors import ToolUnavailableError
from fastio.runtime.installation import pip_install


class LibraryMissingError(ToolUnavailableError, ImportError):
    """A plug-in was imported, but its library is not installed. The message says what to install."""


def missing(library: str, error: ImportError) -> LibraryMissingError:
    """Return the error for a library that could not be imported; ``library`` is also the name of fastio's extra."""
    return LibraryMissingError(library, str(error), pip_install(library))
