"""Writes strict JSON, without NaN and infinity."""

from __future__ import annotations

import json
import math
from typing import Any


def text(told: Any) -> str:
    """The value as JSON. NaN and infinity become null, since JSON has no such numbers."""
    return json.dumps(_finite(told), indent=1, allow_nan=False)


def _finite(told: Any) -> Any:
    if isinstance(told, dict):
        return {key: _finite(value) for key, value in told.items()}
    if isinstance(told, (list, tuple)):
        return [_finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told
