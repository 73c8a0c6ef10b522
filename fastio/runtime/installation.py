"""The pip commands that install what an optional part needs: its packages by name, as fastio's own metadata lists them.

``pip install 'fastio[gds]'`` would look for a release of fastio; packages by name install wherever fastio came from.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires


def pip_install(extra: str = "", package: str = "") -> str:
    """Return the command for all packages of an extra, or for one of them; without ``extra``, for a dependency."""
    try:
        found = [one.partition(";") for one in requires("fastio") or ()]
    except PackageNotFoundError:  # a copy without metadata
        return f"pip install {package}" if package else f"pip install '.[{extra}]' in a clone of fastio"
    marker = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""")
    wanted = [name.strip() for name, _, marks in found if (marker.search(marks) if extra else "extra" not in marks)]
    if package:
        wanted = [name for name in wanted if re.split(r"[^\w.-]", name)[0] == package]
    return f"pip install {' '.join(map(_quoted, wanted))}"


def _quoted(requirement: str) -> str:
    return requirement if re.fullmatch(r"[\w.-]+", requirement) else f"'{requirement}'"
