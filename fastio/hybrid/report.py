"""What Hybrid has planned and done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastio.hybrid.planning.costs import MODES, LayerCosts
from fastio.hybrid.planning.plan import Plan

_MIB = 1 << 20


@dataclass(frozen=True)
class Report:
    """The plan, and counts of copies since then.

    ``layers``: their names, in forward order. ``costs`` and ``plan`` have an entry per layer; both are None before
    planning. ``simulated``: the costs are those of ``machine``, not measured here.

    ``layers_copied`` and ``bytes_copied`` count copies of parameters to the device. ``gradients_moved`` counts
    gradients moved to host memory in backward; ``gradients_early`` copies made in backward of gradients that stay on
    the device; ``gradients_copied`` copies made in steps. ``state_bytes_written`` and ``state_bytes_read``: of the
    optimizer's state, if it is on disk.
    """

    layers: Sequence[str]
    costs: Sequence[LayerCosts] | None
    plan: Plan | None
    simulated: bool
    machine: str
    steps: int
    layers_copied: int
    bytes_copied: int
    gradients_moved: int
    gradients_early: int
    gradients_copied: int
    state_bytes_written: int
    state_bytes_read: int

    def __repr__(self) -> str:
        planned = "not planned yet" if self.plan is None else "planned"
        counts = f"layers: {len(self.layers)}, copied: {self.layers_copied}"
        return f"<fastio hybrid Report: steps: {self.steps}, {counts}, {planned}>"

    def __str__(self) -> str:
        if self.plan is None or self.costs is None:
            return f"hybrid training: {self.steps} steps, not planned yet"
        lines = [f"hybrid training: {self.steps} steps, {len(self.layers)} layers"]
        for mode in MODES:
            chosen = [c.nbytes for c, m in zip(self.costs, self.plan.modes, strict=True) if m == mode]
            lines.append(f"{mode}: {len(chosen)} layers, {sum(chosen) / _MIB:.1f} MiB")
        source = f"simulated for {self.machine}" if self.simulated else "measured here"
        lines.append(f"forward: {self.plan.forward_s * 1e3:.3f} ms ({source})")
        on_host = sum(self.costs[layer].nbytes for layer in self.plan.gradients_on_host)
        lines.append(f"gradients in host memory: {on_host / _MIB:.1f} MiB")
        lines.append(f"copied to the device: {self.layers_copied} layers, {self.bytes_copied / _MIB:.1f} MiB")
        lines.append(
            f"gradients: {self.gradients_moved} moved in backward, {self.gradients_early} copied in backward, "
            f"{self.gradients_copied} in steps"
        )
        if self.state_bytes_written:
            moved = self.state_bytes_written / _MIB, self.state_bytes_read / _MIB
            lines.append(f"optimizer state on disk: {moved[0]:.1f} MiB written, {moved[1]:.1f} MiB read")
        return "\n".join(lines)
