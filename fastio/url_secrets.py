"""Hides passwords and the values of queries in the URLs of a text."""

from __future__ import annotations

import re

# A name without a password stays: abfs://container@account. That of HTTP may be a token.
_USER = re.compile(r"(?:(?<=\bhttp://)|(?<=\bhttps://))[^/\s\"]*@|(?<=://)[^/\s\":]*:[^/\s\"]*@")
_QUERY = re.compile(r"([?&][\w.~%+\[\]-]+=)[^&#\s\"]*[^&#\s'\":;,.)]")


def hide_secrets(text: str) -> str:
    """The text with ``***`` for the user and password of each URL, and for the values of its query."""
    begin, found, rest = text.partition("://")
    if not found:
        return text
    return _USER.sub("***@", begin + found + _QUERY.sub(r"\1***", rest))
