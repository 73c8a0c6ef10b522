"""Says what to do where fastio's native part is missing, as in the source tree."""

from __future__ import annotations

import platform
from importlib import import_module
from pathlib import Path


def check() -> None:
    """Import the native part. ImportError, with the cure, if this folder of fastio has none."""
    try:
        import_module("fastio._native")
    except ModuleNotFoundError as error:
        if error.name != "fastio._native":
            raise
        raise ImportError(_cure(Path(__file__).parent.parent), name=error.name) from None


def _cure(package: Path) -> str:
    root = package.parent
    if (root / "native" / "CMakeLists.txt").is_file():
        return (
            f"this fastio is the source tree ({package}), whose native part is not built; expected the installed "
            f"package: run `pip install {root}` once, then start Python in another folder than {root}, "
            "where `import fastio` finds the source tree first"
        )
    return (
        f"this fastio ({package}) has no native part for Python {platform.python_version()}; expected one that was "
        "installed by this Python: install it again, with `python -m pip` of the Python that imports it"
    )
