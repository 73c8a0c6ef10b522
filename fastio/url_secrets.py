"""Hides passwords and the values of queries in the URLs of a text."""

from __future__ import annotations

import re

# A name without a password stays: abfs://container@account. That of HTTP may be a token.
_USER = re.compile(r"(?:(?<=\bhttp://)|(?<=\bhttps://))[^/\s\"]*@|(?<=://)[^/\s\":]*:[^/\s\"]*@")
_QUERY = re.compile(r"([?&][\w.~%+\[\]-]+=)[^&#\s\"]*[^&#\s'\":;,.)]")
# The same of a URL alone, which may have spaces and quotes. In a text no one could tell where such a secret ends.
_WHOLE_USER = re.compile(r"(?:(?<=\bhttp://)|(?<=\bhttps://))[^/]*@|(?<=://)[^/:]*:[^/]*@")
_WHOLE_VALUE = re.compile(r"[?&][\w.~%+\[\]-]+(=[^&#]+)")
_ENDS_EARLY = re.compile(r"[\s\"]")
_noted: dict[str, str] = {}


def note_secrets(url: str) -> None:
    """Let :func:`hide_secrets` hide those secrets of a URL that have spaces or quotes."""
    for found in (*_WHOLE_USER.finditer(url), *_WHOLE_VALUE.finditer(url, url.find("://"))):
        secret = found[found.lastindex or 0]
        if _ENDS_EARLY.search(secret):
            for form in (secret, repr(secret)[1:-1]):
                _noted[form] = "=***" if secret[0] == "=" else "***@"


def hide_secrets(text: str) -> str:
    """The text with ``***`` for the user and password of each URL, and for the values of its query."""
    begin, found, rest = text.partition("://")
    if not found:
        return text
    for secret, shown in list(_noted.items()):
        rest = rest.replace(secret, shown)
    return _USER.sub("***@", begin + found + _QUERY.sub(r"\1***", rest))
