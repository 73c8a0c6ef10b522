"""MemFerry's forward algorithm (section IV, algorithm 1), in the interpretation that works. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fastio.hybrid.planning.costs import DHA, GFGB, LayerCosts, simulate


def memferry(costs: Sequence[LayerCosts]) -> tuple[str, ...]:
    """Return a mode for each layer, GFGB or DHA; never slower in forward than GFGB for all.

    Layer by layer: DHA if that is no slower than waiting for the copy, else a copy. If the time bought by earlier
    layers does not cover the copy, earlier copies are given up as long as that helps.
    """
    modes: list[str] = []
    all_s = bought_s = 0.0  # bought: all_s minus the issued copies
    tag: int | None = None  # layer at which backtracking begins
    for number, layer in enumerate(costs):
        if layer.forward_dha_s <= layer.forward_s + max(layer.copy_s - bought_s, 0.0):
            modes.append(DHA)
            all_s += layer.forward_dha_s
            bought_s += layer.forward_dha_s
        else:
            if layer.copy_s <= bought_s:
                all_s += layer.forward_s
                bought_s += layer.forward_s - layer.copy_s
            else:
                start = number if tag is None else tag
                all_s, bought_s, given_up = _backtrack(costs, modes, start, number, all_s, bought_s)
                tag = given_up if given_up is not None else tag
            tag = number if tag is None else tag
            modes.append(GFGB)
        all_s += layer.between_s
        bought_s += layer.between_s
    everything = (GFGB,) * len(costs)
    return tuple(modes) if simulate(costs, modes) <= simulate(costs, everything) else everything


def _backtrack(
    costs: Sequence[LayerCosts], modes: list[str], start: int, number: int, all_s: float, bought_s: float
) -> tuple[float, float, int | None]:
    """Turn copied layers from ``start`` on into DHA while that makes layer ``number`` ready sooner.

    Returns the times with that layer copied and computed, and where the next backtracking begins (None: unchanged).
    """
    layer = costs[number]
    before = all_s
    least = before + layer.copy_s - bought_s + layer.forward_s
    tag = None
    for i in range(start, number):
        if modes[i] != GFGB:
            continue
        longer = costs[i].forward_dha_s - costs[i].forward_s
        gain = costs[i].copy_s + longer
        then = max(layer.copy_s - bought_s - gain, 0.0) + before + longer + layer.forward_s
        if then < least:
            modes[i], tag, least = DHA, i + 1, then
            before += longer
            bought_s += gain
            if bought_s >= layer.copy_s:
                break
    return least, max(bought_s - layer.copy_s, 0.0) + layer.forward_s, tag
