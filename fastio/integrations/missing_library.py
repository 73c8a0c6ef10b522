"""What is said where a plug-in's library is not installed."""

from __future__ import annotations

from fastio.errors import ToolUnavailableError


class LibraryMissingError(ToolUnavailableError, ImportError):
    """A plug-in was imported without the library that it is for. The message says what to install."""


def missing(library: str, error: ImportError) -> LibraryMissingError:
    """The error for a library that could not be imported; ``library`` is also the name of the extra that has it."""
    return LibraryMissingError(library, str(error), f"pip install 'fastio[{library}]'")
