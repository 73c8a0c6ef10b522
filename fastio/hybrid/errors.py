"""Errors of hybrid training, other than budgets. Each message says what to change."""

from __future__ import annotations

from fastio.errors import FastIOError


class HybridError(FastIOError, RuntimeError):
    """A model, an optimizer or a step that Hybrid cannot train."""


class StateLostError(HybridError):
    """Part of the optimizer's state could not be read or written: the model is in the middle of a step."""
