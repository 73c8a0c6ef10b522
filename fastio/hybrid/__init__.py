"""Hybrid training: parameters, gradients and optimizer state in host memory (MemFerry).

:class:`Hybrid` trains. The planners are pure and can be used alone: :func:`plan` and :func:`simulate`.
"""

import typing as _typing

from fastio.hybrid.errors import HybridError, StateLostError
from fastio.hybrid.planning.costs import GpuBudgetError, LayerCosts, simulate
from fastio.hybrid.planning.plan import Plan, plan

if _typing.TYPE_CHECKING:
    from fastio.hybrid.manager import Hybrid
else:

    def __getattr__(name: str) -> object:
        """Import Hybrid on first use: the planners need no torch."""
        if name == "Hybrid":
            from fastio.hybrid.manager import Hybrid

            return Hybrid
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["GpuBudgetError", "Hybrid", "HybridError", "LayerCosts", "Plan", "StateLostError", "plan", "simulate"]
