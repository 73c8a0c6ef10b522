"""The budget that fits a device, where the user gives none (FlashNeuron, section 3.3). Pure. Sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass

# Of what all else leaves of an accelerator's memory, for the allocator's gaps: a sixteenth, or what one operator saves.
_RESERVE, _MOST_GAPS = 16, 4
_HOST_RESERVE = 4  # of what all else leaves of the host's available memory: a quarter, which other programs may take


@dataclass(frozen=True)
class Fit:
    """How a budget was chosen.

    ``device`` has ``limit`` bytes for this process. ``others`` is what a step takes there besides saved tensors, at its
    peak: parameters, gradients, the optimizer's state, operators and their workspace. ``reserve`` is left free. What is
    left is the ``budget`` for saved tensors.
    """

    device: str
    limit: int
    others: int
    reserve: int
    budget: int


@dataclass
class Room:
    """The memory for the saved tensors of a profile, in bytes.

    ``peak``: of all that was on the device while everything moved out. ``base``: what was on it when the last step had
    ended. ``backward``: what the peak had risen by when backward ended, before an optimizer took memory for its state.
    ``grown``: what was added to ``base`` since. ``fit``: the budget that was chosen; None if the user gave one.
    ``most``: the budget may not be larger, because memory ran out with that; None if it did not.
    """

    peak: int = 0
    base: int = 0
    backward: int = 0
    grown: int = 0
    fit: Fit | None = None
    most: int | None = None


def fit_device(device: str, limit: int, peak: int, grown: int, working_set: int) -> Fit:
    """Return the budget on an accelerator.

    ``peak`` was measured in a pass whose saved tensors all moved out: it has the parameters, gradients, the optimizer,
    the largest operator's workspace, and the ``working_set`` saved tensors that one operator needs at once. ``grown``
    is what lives on the device since then.
    """
    others = max(0, peak - working_set) + grown
    left = max(0, limit - others)
    reserve = max(left // _RESERVE, min(working_set, left // _MOST_GAPS))
    return Fit(device, limit, others, reserve, left - reserve)


def fit_host(available: int, passing: int, working_set: int) -> Fit:
    """Return the budget on the CPU, of what is ``available`` to the process between two steps.

    ``passing`` is what a step took in addition, and gave back, while its saved tensors all moved out; the
    ``working_set`` is in it.
    """
    others = max(0, passing - working_set)
    left = max(0, available - others)
    reserve = left // _HOST_RESERVE
    return Fit("cpu", available, others, reserve, left - reserve)
