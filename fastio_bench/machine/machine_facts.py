"""Puts a document's machine and settings into words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastio_bench.report import cells

_GIB = 1 << 30


def facts(told: Mapping[str, Any]) -> dict[str, str]:
    """The machine's facts by heading; empty where the document has none."""
    fs = told.get("filesystem") or {}
    versions = told.get("versions") or {}
    memory = told.get("memory_bytes")
    system = [str(told[name]) for name in ("kernel", "architecture") if told.get(name)]
    return {
        "Processor": ", ".join([*_said(told.get("processor")), *_said(told.get("cores"), "{} cores")]),
        "Memory": f"{memory / _GIB:.0f} GiB" if memory else "",
        "GPU": ", ".join(map(str, told.get("gpus") or ())) or "none",
        "Filesystem": " on ".join([*_said(fs.get("kind")), *_said(fs.get("device"))]),
        "System": " ".join(["Linux", *system]) if system else "",
        "Versions": ", ".join(
            [*_said(told.get("python"), "Python {}"), *(_version(n, v) for n, v in versions.items())]
        ),
    }


def setting(value: Any) -> str:
    """A setting's value as text."""
    if isinstance(value, Mapping):
        told = {str(name): setting(one) for name, one in value.items()}
        return "; ".join(f"{name}: {one}" if one else name for name, one in told.items())
    if isinstance(value, list):
        return ", ".join(map(setting, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value if isinstance(value, str) else cells.text(value)


def _version(name: str, number: Any) -> str:
    """A version as "name number". fio and older documents repeat the name in the number: fio-3.33."""
    return f"{name} {str(number).removeprefix(f'{name}-')}"


def _said(value: Any, form: str = "{}") -> Iterable[str]:
    return [form.format(value)] if value else []
