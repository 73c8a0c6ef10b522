"""What Hybrid has planned and done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastio.hybrid.planning.costs import DFGB, DHA, GFGB, MODES, LayerCosts
from fastio.hybrid.planning.plan import Plan
from fastio.sizes import count_of

_MIB = 1 << 20
MEANINGS = {
    GFGB: "copied to the GPU before forward",
    DHA: "read in host memory",
    DFGB: "read in host memory in forward, copied before backward",
}
"""What a layer's mode means, in words."""


@dataclass(frozen=True)
class Report:
    """The plan, and counts of copies since then.

    ``layers``: their names, in forward order. ``costs`` and ``plan`` have an entry per layer; both are None before
    planning. ``simulated``: the costs are those of ``machine``, not measured here.

    ``layers_copied`` and ``bytes_copied`` count copies of parameters to the device. ``gradients_moved`` counts
    gradients moved to host memory in backward, ``gradients_beside`` those of them whose move overlaps it;
    ``gradients_early`` copies made in backward of gradients that stay on
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
    gradients_beside: int
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
            return f"hybrid training: {count_of(self.steps, 'step')}, not planned yet"
        parameters = sum(one.nbytes for one in self.costs)
        steps, layers = count_of(self.steps, "step"), count_of(len(self.layers), "layer")
        lines = [f"hybrid training: {steps}, {layers}, {_mib(parameters)} of parameters"]
        if self.simulated:
            lines.append(
                "without a GPU: the model trains on the CPU, with the values of plain training; two buffers of host "
                f"memory stand for the GPU's and the host's. Modes and times are planned for a simulated {self.machine}"
            )
        for mode in MODES:
            chosen = [c.nbytes for c, m in zip(self.costs, self.plan.modes, strict=True) if m == mode]
            lines.append(f"{mode}, {MEANINGS[mode]}: {count_of(len(chosen), 'layer')}, {_mib(sum(chosen))}")
        on_host = sum(self.costs[layer].nbytes for layer in self.plan.gradients_on_host)
        lines.append(f"gradients in host memory, by the plan: {_mib(on_host)}")
        source = f"simulated for {self.machine}, not measured here" if self.simulated else "from times measured here"
        device = "the buffer that stands for the GPU's memory" if self.simulated else "the device"
        lines.append(f"planned forward: {self.plan.forward_s * 1e3:.3f} ms ({source})")
        lines.append(f"copied to {device}: {count_of(self.layers_copied, 'layer')}, {_mib(self.bytes_copied)} so far")
        lines.append(
            f"gradients so far: {self.gradients_moved} moved to host memory in backward "
            f"({self.gradients_beside} while it went on), "
            f"{self.gradients_early} copied there in backward, {self.gradients_copied} copied in steps"
        )
        if self.state_bytes_written:
            moved = _mib(self.state_bytes_written), _mib(self.state_bytes_read)
            lines.append(f"optimizer state on disk so far: {moved[0]} written, {moved[1]} read")
        return "\n".join(lines)


def _mib(nbytes: int) -> str:
    return f"{nbytes / _MIB:.1f} MiB"
