"""Tests vDNN's rules on small networks, its passes in order, and its published numbers from layer shapes."""

from __future__ import annotations

import pytest

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.layers import BackwardLayers, Prefetching
from fastio.offload.planning.vdnn import find_prefetch_layer, leaves
from fastio_bench.papers.vdnn_algorithms import algorithms
from fastio_bench.papers.vdnn_dynamic import dynamic
from fastio_bench.papers.vdnn_iteration import Algorithm, Configuration, Layer, iteration, last_consumers, resident
from fastio_bench.papers.vdnn_shapes import vgg
from fastio_bench.papers.vdnn_six import WAYS, on_titan_x
from fastio_bench.papers.vgg_shapes import parameter_nbytes

GB, GIB = 10**9, 1 << 30


def usage(layers: tuple[Layer, ...], configuration: Configuration) -> list[int]:
    """Bytes by layer, the larger of its forward and its backward step."""
    found = [0] * len(layers)
    for step in resident(layers, configuration):
        found[step.layer] = max(found[step.layer], step.nbytes)
    return found


def test_output_leaves_after_its_last_reader() -> None:
    """Figure 3: layer 1 forks to 2 and 3; layer 5 joins them (3 through 4)."""
    assert last_consumers([(), (0,), (1,), (1,), (3,), (2, 4)]) == [1, 3, 5, 4, 5, None]
    with pytest.raises(ValueError, match="layer 1 reads the output of layer 1: expected an earlier layer"):
        last_consumers([(), (1,)])


def test_prefetch_stops_at_the_nearest_convolution() -> None:
    kinds = ["conv", "pool", "conv", "relu", "pool", "fc"]
    out = [True, True, True, False, True, False]
    none = [False] * 6
    assert find_prefetch_layer(5, kinds, out, none) == 4
    assert find_prefetch_layer(5, kinds, out, [False, False, False, False, True, False]) == 2
    # The nearest convolution is back: earlier layers are too far ahead.
    assert find_prefetch_layer(5, kinds, out, [False, False, True, False, True, False]) is None
    assert find_prefetch_layer(2, kinds, out, none) == 1
    assert find_prefetch_layer(0, kinds, out, none) is None
    assert find_prefetch_layer(4, ["pool", "fc", "conv", "fc", "fc"], [True, False, False, False, False], none) is None


def test_every_input_is_prefetched_once_and_in_time() -> None:
    kinds = [layer.kind for layer in vgg(1).layers]
    out = [leaves(kind, "all") for kind in kinds]
    back = [False] * len(kinds)
    for current in reversed(range(len(kinds))):
        assert back[current] or not out[current] or current == len(kinds) - 1
        found = find_prefetch_layer(current, kinds, out, back)
        if found is not None:
            assert found < current
            assert not back[found]
            back[found] = True
    assert back == out


CHAIN = (
    Layer("input", 5),
    Layer("conv", 10, (0,), (Algorithm(3.0, 100), Algorithm(6.0, 0))),
    Layer("pool", 4, (1,), (Algorithm(3.0, 0),)),
    Layer("fc", 1, (2,), (Algorithm(3.0, 0),)),
)


def test_usage_of_a_chain_equals_the_hand_computed_one() -> None:
    # Backward without offload: inputs, the gradient of the output, and the output or the input's gradient; a pooling
    # needs both. Images have no gradient.
    assert usage(CHAIN, Configuration("none", (0, 1, 0, 0))) == [0, 5 + 10 + 10, 15 + 4 + 4 + 10, 19 + 1 + 4]
    assert usage(CHAIN, Configuration("none", (0, 0, 0, 0)))[1] == 125
    # conv: the images leave after layer 1; layer 3 prefetches them, past the pooling, which keeps its input.
    assert usage(CHAIN, Configuration("conv", (0, 1, 0, 0))) == [0, 5 + 10 + 10, 15 + 4 + 4 + 10, 19 + 1 + 4]
    # all: layer 1's output leaves too and comes back with layer 3; the images come back with layer 2.
    assert usage(CHAIN, Configuration("all", (0, 1, 0, 0))) == [0, 5 + 10 + 10, 15 + 4 + 4 + 10, 14 + 1 + 4]


def test_steps_wait_for_compute_and_transfer() -> None:
    """Figure 9: forward takes 2, 1 and 1 s, backward 4, 2 and 2 s; at 5 bytes/s the images take 1 s, the map 2 s."""
    plain = iteration(CHAIN, Configuration("none", (0, 1, 0, 0)), 5.0)
    assert plain.seconds == pytest.approx(12)
    assert plain.moved_nbytes == 0
    everything = iteration(CHAIN, Configuration("all", (0, 1, 0, 0)), 5.0)
    assert everything.moved_nbytes == 15
    assert everything.seconds == pytest.approx(12 + 1)  # the pooling waits for its input to leave, nothing else waits
    slow = iteration(CHAIN, Configuration("all", (0, 1, 0, 0)), 1.0)
    assert slow.seconds == pytest.approx((5 + 10 + 1) + (10 + 5 + 4))


def test_input_that_nobody_prefetched_is_waited_for() -> None:
    """The last layer's own input: no step comes before it in backward."""
    layers = (Layer("input", 5), Layer("conv", 10, (0,), (Algorithm(3.0, 0),)))
    assert [(step.moved_nbytes, step.awaited_nbytes) for step in resident(layers, Configuration("all", (0, 0)))] == [
        (5, 0),
        (0, 5),
    ]
    assert iteration(layers, Configuration("all", (0, 0)), 5.0).seconds == pytest.approx(3 + 1)


def test_gradient_of_a_fork_stays_until_its_last_reader() -> None:
    layers = (Layer("input", 1), Layer("conv", 10, (0,)), Layer("fc", 2, (1,)), Layer("fc", 3, (1, 2)))
    assert usage(layers, Configuration("none", (0,) * 4))[2] == 11 + (2 + 10) + 2


FAST, MIDDLE, SMALL = Algorithm(1.0, 40), Algorithm(2.0, 20), Algorithm(3.0, 0)
DEEP = (Layer("input", 10), *(Layer("conv", 10, (n,), (MIDDLE, SMALL, FAST)) for n in range(6)), Layer("fc", 1, (6,)))


def names(budget: int) -> tuple[Configuration, list[tuple[str, bool]]]:
    result = dynamic(DEEP, budget)
    return result.configuration, [(configuration.offloading, fitted) for configuration, fitted in result.passes]


def test_dynamic_chooses_the_fastest_configuration_that_fits() -> None:
    fast = (0, *(2,) * 6, 0)
    roomy, passes = names(max(usage(DEEP, Configuration("none", fast))))
    assert roomy == Configuration("none", fast)
    assert passes == [("all", True), ("none", True)]
    conv, passes = names(max(usage(DEEP, Configuration("conv", fast))))
    assert conv == Configuration("conv", fast)
    assert passes == [("all", True), ("none", False), ("conv", True)]


def test_dynamic_downgrades_only_layers_that_do_not_fit() -> None:
    bare = usage(DEEP, Configuration("conv", (0, *(1,) * 6, 0)))
    configuration, passes = names(max(bare) + 20)
    assert configuration.offloading == "conv"
    assert [offloading for offloading, _ in passes] == ["all", "none", "conv", "all", "conv"]
    for layer, algorithm, nbytes in zip(DEEP[1:-1], configuration.algorithms[1:-1], bare[1:-1], strict=True):
        able = [a for a in layer.algorithms if nbytes + a.workspace_nbytes <= max(bare) + 20]
        assert layer.algorithms[algorithm] == min(able, key=lambda a: a.time_s)
    assert {DEEP[n].algorithms[configuration.algorithms[n]] for n in range(1, 7)} >= {MIDDLE}


def test_dynamic_with_trials_tries_every_pass() -> None:
    """The callback decides, not the model: a pass that runs out of memory failed."""
    tried = []

    def only_the_first(configuration: Configuration) -> bool:
        tried.append(configuration)
        return len(tried) == 1

    least = Configuration("all", (0, *(1,) * 6, 0))
    assert dynamic(DEEP, 10**6, fits=only_the_first).configuration == least
    assert [configuration.offloading for configuration in tried] == ["all", "none", "conv", "all", "conv", "all"]
    assert tried[0] == least
    with pytest.raises(InfeasibleBudget, match="vDNN-all with the least workspace"):
        dynamic(DEEP, 10**6, fits=lambda configuration: False)


def test_dynamic_counts_fixed_bytes() -> None:
    least = max(usage(DEEP, Configuration("all", (0, *(1,) * 6, 0))))
    assert dynamic(DEEP, least + 7, fixed_nbytes=7).configuration.offloading == "conv"
    with pytest.raises(InfeasibleBudget) as raised:
        dynamic(DEEP, least + 6, fixed_nbytes=7)
    assert (raised.value.need, raised.value.got) == (least + 7, least + 6)


def test_vgg_16_moves_as_many_bytes_as_in_the_paper() -> None:
    """Section V: "up to 16 GB" for batch 256. By shapes 16.9 GB, or 15.6 GiB without the images."""
    network = vgg(256)
    moved = on_titan_x(network, WAYS["vdnn-all (m)"]).moved_nbytes
    assert moved / GB == pytest.approx(16.9, abs=0.05)
    assert (moved - network.layers[0].nbytes) / GIB == pytest.approx(15.6, abs=0.05)
    assert on_titan_x(network, WAYS["vdnn-conv (m)"]).moved_nbytes / GB == pytest.approx(10.6, abs=0.05)


def test_shapes_equal_those_of_torchvisions_vgg() -> None:
    layers = vgg(2).layers
    assert [layer.kind for layer in layers].count("conv") == 16
    assert [layer.nbytes for layer in layers if layer.kind == "pool"][-1] == 2 * 512 * 7 * 7 * 4
    assert parameter_nbytes() == vgg(2).parameter_nbytes == 4 * 143_667_240  # torchvision's vgg19, which has these 16
    assert sum(layer.kind == "conv" for layer in vgg(1, 416).layers) == 416


def test_bytes_that_vdnn_keeps_do_not_grow_with_depth() -> None:
    """Figure 15: the baseline grows 14 times from 16 to 416 convolutions, to 67.1 GB; what vDNN keeps does not grow."""
    networks = [vgg(32, depth) for depth in (16, 116, 216, 416)]
    every = Configuration("all", (0,) * len(networks[-1].layers))
    peaks = [max(usage(one.layers, Configuration("all", every.algorithms[: len(one.layers)]))) for one in networks]
    assert len(set(peaks[1:])) == 1
    assert peaks[-1] < 4.2 * GB
    assert networks[-1].baseline_nbytes == pytest.approx(67.1e9, rel=0.05)
    assert networks[-1].baseline_nbytes > 14 * networks[0].baseline_nbytes


def test_workspaces_are_halves_of_spectra() -> None:
    """Two tiles of 32 x 17 complex numbers a map and a filter, as 3 x 3 filters leave 30 x 30 of a tile."""
    fast, table, least = algorithms(1.0, 2, 3, 5, 60, 3, 1)
    assert fast.workspace_nbytes == 32 * 17 * 8 * (2 * (3 + 5) * 4 + 3 * 5)
    assert table.workspace_nbytes == 3 * 9 * 4
    assert least.workspace_nbytes == 0
    assert fast.time_s < table.time_s < least.time_s
    assert algorithms(1.0, 2, 3, 5, 13, 3, 1)[0].workspace_nbytes == 16 * 9 * 8 * (2 * 8 + 15)
    for strided in (algorithms(1.0, 2, 3, 5, 60, 3, 2), algorithms(1.0, 2, 3, 5, 60, 1, 1)):
        assert len(strided) == 2
        assert strided[0].workspace_nbytes < 200


def test_what_runs_has_room() -> None:
    """One model of memory decides whether an iteration runs, and tells its peak."""
    for way in WAYS.values():
        for batch in (64, 128, 256):
            own = on_titan_x(vgg(batch), way)
            assert own.runs == (own.peak_nbytes <= 12 * GIB)
    assert [on_titan_x(vgg(256), WAYS[way]).runs for way in ("vdnn-all (m)", "vdnn-all (p)", "vdnn-dyn")] == [
        True,
        False,
        True,
    ]


def recorded(*layers: tuple[str, list[int]]) -> BackwardLayers:
    """Layers in forward order, with the saved tensors that they use, as backward tells them."""
    found, place = BackwardLayers(), 0
    for number, (kind, inputs) in reversed(list(enumerate(layers))):
        for ordinal in inputs:
            found.record(place, ordinal, kind, number)
            place += 1
    return found


def test_layers_prefetch_as_the_paper_searches() -> None:
    layers = recorded(("conv", [0]), ("pool", [1]), ("conv", [2]), ("relu", [3]), ("fc", [4]))
    prefetching = Prefetching(layers, {0, 1, 2})
    assert [prefetching.begin(place) for place in range(5)] == [[2], [], [1], [0], []]
    # fc: past relu, the convolution. relu: that has come, and the search ends there. Then one layer each.
    assert prefetching.begin(4) is None  # it has begun


def test_input_of_a_fork_comes_back_once_with_its_last_reader() -> None:
    layers = recorded(("relu", [0]), ("conv", [1]), ("conv", [1]), ("add", [2]))
    assert layers.readers() == {0: 1, 1: 2, 2: 1}
    prefetching = Prefetching(layers, {0, 1})
    assert [prefetching.begin(place) for place in range(4)] == [[1], [], [0], []]


def test_second_backward_leaves_the_counts() -> None:
    layers = recorded(("conv", [0]), ("conv", [1]))
    layers.record(2, 1, "conv", 1)
    layers.record(3, 0, "conv", 0)
    assert layers.readers() == {0: 1, 1: 1}
    assert layers.of_use == {0: 0, 1: 1, 2: 0, 3: 1}
