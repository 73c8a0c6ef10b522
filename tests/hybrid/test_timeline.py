"""Tests the simulated iteration: lanes do one thing at a time, in a possible order; and its plot."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio.hybrid import Hybrid, HybridError, LayerCosts, Plan, plan
from fastio.hybrid.planning.backward import backward
from fastio.hybrid.planning.costs import BUCKET
from fastio.hybrid.simulation import machines
from fastio.hybrid.simulation.machines import A100, Work
from fastio.hybrid.simulation.timeline import COMPUTE, LANES, TO_GPU, TO_HOST, UPDATE, iterate
from hybrid_training import MODELS, adamw, batch


def seconds(most: int) -> st.SearchStrategy[float]:
    """Multiples of a 64th: their sums are exact, so an overlap is never due to rounding."""
    return st.integers(0, most * 64).map(lambda ticks: ticks / 64)


layers = st.builds(
    LayerCosts,
    *[seconds(5)] * 3,
    backward_s=seconds(5),
    backward_dha_s=seconds(9),
    between_s=seconds(1),
    nbytes=st.integers(0, 50),
)


def test_iteration_equals_the_hand_computed_one() -> None:
    costs = [LayerCosts(2, 1, 4, 2, 3, nbytes=10), LayerCosts(3, 1, 2, 2, 6, nbytes=20)]
    both = Plan(("GFGB", "DHA"), 5, (0,))
    seen = iterate(costs, both, [1, 10])
    spans = {(span.lane, span.what, span.layer): (span.start_s, span.end_s) for span in seen.spans}
    assert spans[TO_GPU, "copy", 0] == (0, 2)
    assert spans[COMPUTE, "forward", 0] == (2, 3)
    assert spans[COMPUTE, "forward", 1] == (3, 5)
    assert spans[COMPUTE, "backward", 1] == (5, 11)
    assert spans[COMPUTE, "backward", 0] == (11, 13), "its parameters are on the GPU"
    assert spans[TO_HOST, "gradient", 0] == (13, 15), "backward ends with its move"
    assert spans[TO_HOST, "gradient", 1] == (15, 18), "it stays on the GPU until backward has ended"
    assert spans[UPDATE, "update", 1] == (18, 28)
    assert spans[UPDATE, "update", 0] == (28, 29)
    assert (seen.forward_s, seen.backward_s, seen.iteration_s, seen.nbytes) == (5, 10, 29, 10 + 20 + 10)
    kept = Plan(("GFGB", "DHA"), 5, ())
    assert iterate(costs, kept, [1, 10]).iteration_s == 5 + 6 + 3 + 10 + 1, "both gradients have arrived"
    assert iterate(costs, kept, [1, 10], update_waits=True).iteration_s == 5 + 6 + 3 + 2 + 10 + 1
    assert iterate([], Plan((), 0, ())).iteration_s == 0


def test_a_large_gradient_is_updated_in_pieces_as_they_arrive() -> None:
    costs = [LayerCosts(8, 1, 1, 1, 1, nbytes=4 * BUCKET)]
    seen = iterate(costs, Plan(("GFGB",), 9, ()), [12])
    updates = [(span.start_s, span.end_s) for span in seen.spans if span.lane == UPDATE]
    assert updates == [(12, 15), (15, 18), (18, 21), (21, 24)], "backward ends at 10, a piece arrives every 2 seconds"
    assert iterate(costs, Plan(("GFGB",), 9, ()), [12], update_waits=True).iteration_s == 10 + 8 + 12


def test_backward_waits_for_moves_that_exceed_the_window() -> None:
    """Twice the largest so far may be under way; the last copies end with backward."""
    costs = [LayerCosts(4, 1, 1, 1, 1, nbytes=4), *[LayerCosts(5, 1, 1, 1, 1, nbytes=10) for _ in range(4)]]
    seen = backward(costs, ["GFGB"] * 5, range(5), start_s=2.0)
    assert [seen.computing[i] for i in (4, 3, 2, 1, 0)] == [(2, 3), (3, 4), (4, 5), (8, 9), (13, 14)]
    assert [seen.moving[i] for i in (4, 3, 2, 1, 0)] == [(3, 8), (8, 13), (13, 18), (18, 23), (23, 27)]
    assert (seen.end_s, seen.moving_nbytes) == (27, 30)
    slow = [LayerCosts(1, 1, 1, 2, 2, nbytes=10)] * 5
    assert backward(slow, ["GFGB"] * 5, range(5)).end_s == 5 * 2 + 1, "only the last copy is not hidden"


@given(st.lists(layers, max_size=6), st.booleans())
@settings(deadline=None)
def test_backward_with_moves_is_within_its_bounds(costs: list[LayerCosts], in_place: bool) -> None:
    modes = ["DHA" if in_place else "GFGB"] * len(costs)
    everything = backward(costs, modes, range(len(costs)))
    computed = sum(layer.backward_dha_s if in_place else layer.backward_s for layer in costs)
    copied = sum(layer.copy_s for layer in costs)
    assert max(computed, copied if costs else 0.0) <= everything.end_s <= computed + copied
    assert backward(costs, modes, ()).end_s == computed
    assert everything.moving_nbytes <= 3 * max((layer.nbytes for layer in costs), default=0)


@given(st.lists(layers, max_size=6), st.floats(0, 1), st.booleans())
@settings(deadline=None)
def test_spans_of_a_lane_do_not_overlap(costs: list[LayerCosts], reserve: float, waits: bool) -> None:
    planned = plan(costs, gradient_reserve=reserve)
    seen = iterate(costs, planned, [0.5] * len(costs), update_waits=waits)
    assert seen.forward_s == planned.forward_s
    for lane in LANES:
        own = ((span.start_s, span.end_s) for span in seen.spans if span.lane == lane)
        spans = sorted((start, end) for start, end in own if start < end)  # spans of no time cannot overlap
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert max((span.end_s for span in seen.spans), default=0.0) <= seen.iteration_s
    assert iterate(costs, planned, [0.5] * len(costs)).iteration_s <= seen.iteration_s


def test_layers_that_touch_little_are_read_in_place_and_products_are_copied() -> None:
    """The paper's figure 3: reading in place speeds up forward of embeddings and norms, not of matrix products."""
    embedding = machines.costs(Work(90 << 20, 4096 * 768 * 4, 0.0, 12 << 20), A100)
    norm = machines.costs(Work(6144, 6144, 3e6, 24 << 20), A100)
    product = machines.costs(Work(9 << 20, 9 << 20, 2.0 * 4096 * (9 << 18), 60 << 20, rows=4096), A100)
    for gains in (embedding, norm):
        assert gains.forward_dha_s < gains.copy_s + gains.forward_s
    assert product.forward_dha_s > product.copy_s + product.forward_s
    assert plan([embedding, norm, product]).modes == ("DHA", "DFGB", "GFGB")


def test_hybrid_plots_its_plan(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model = MODELS["mlp"]()
    hybrid = Hybrid(model, adamw(model), device="cpu")
    with pytest.raises(HybridError, match="train a step first"):
        hybrid.plot(tmp_path / "plan.svg")
    model(batch(model)[0]).sum().backward()
    hybrid.step()
    hybrid.plot(tmp_path / "plan.svg")
    assert b"simulated for A100" in (tmp_path / "plan.svg").read_bytes()


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_timelines_are_drawn(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from fastio.hybrid.plot import draw

    costs = [LayerCosts(2, 1, 1.5, 2, 9, nbytes=10), LayerCosts(1, 4, 9, 4, 12, nbytes=20)]
    seen = iterate(costs, plan(costs), [1, 1])
    draw({"hybrid": seen, "other": seen}, tmp_path / f"plot{suffix}", "simulated", ["head", "tail"])
    written = (tmp_path / f"plot{suffix}").read_bytes()
    if suffix == ".svg":
        assert b"late copy" in written
        assert b"update on the CPU" in written
        assert b"simulated" in written
    with pytest.raises(ValueError, match=r"a plot is one of \.png"):
        draw({"hybrid": seen}, tmp_path / "plot.txt", "simulated")
