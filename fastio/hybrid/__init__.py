"""Hybrid training: parameters and gradients in host memory (MemFerry). So far its planners, which are pure."""

from fastio.hybrid.costs import GpuBudgetError, LayerCosts, simulate
from fastio.hybrid.planning import Plan, plan

__all__ = ["GpuBudgetError", "LayerCosts", "Plan", "plan", "simulate"]
