"""FlashNeuron's figures 8 and 10 by a V100's published speeds: what a step takes by batch, and the best batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastio.offload import encode
from fastio_bench.papers import gpu_layers, gpu_speed
from fastio_bench.papers.gpu_speed import BERT_LARGE, RESNET_50
from fastio_bench.papers.offload_simulated import V100_HOST, V100_SSD
from fastio_bench.workloads import shapes, shapes_vision


def test_published_batches_have_the_published_speed() -> None:
    for source in (RESNET_50, BERT_LARGE, gpu_speed.BERT_LARGE_HALF):
        for batch, rate in source.rates:
            assert batch / source.step_s(batch) == pytest.approx(rate)


def test_steps_are_linear_between_and_beyond() -> None:
    four, eight = RESNET_50.step_s(4), RESNET_50.step_s(8)
    assert RESNET_50.step_s(7) == pytest.approx(four + 3 / 4 * (eight - four))
    each = (BERT_LARGE.step_s(10) - BERT_LARGE.step_s(2)) / 8
    assert BERT_LARGE.step_s(14) - BERT_LARGE.step_s(13) == pytest.approx(each)
    assert BERT_LARGE.step_s(2) - BERT_LARGE.step_s(1) == pytest.approx(each)


def test_resnet_50_has_the_parameters_of_torchvisions() -> None:
    assert RESNET_50.network.parameter_nbytes == 4 * shapes.parameters(shapes_vision.resnet((3, 4, 6, 3)))


def test_larger_batches_gain_as_in_the_paper() -> None:
    """Section 4.2: up to +37.8 %, +21.41 % with FP16 alone; ResNet-1922 best at 7 of 4."""
    found = {one.network: one for one in gpu_speed.best()}
    assert (found["ResNet-1922"].plain_batch, found["ResNet-1922"].batch) == (4, 7)
    assert max(one.gain for one in found.values()) > 25
    assert min(one.gain for one in found.values()) > 0


def test_faster_channels_and_smaller_transfers_never_lose() -> None:
    by_ssd, by_host, whole = gpu_speed.best(), gpu_speed.best(V100_HOST), gpu_speed.best(codec=gpu_speed.NO_CODEC)
    for ssd, host, uncompressed in zip(by_ssd, by_host, whole, strict=True):
        assert host.gain >= ssd.gain >= uncompressed.gain >= 0
    half = [gpu_speed.best_in_half_precision(machine) for machine in (V100_SSD, V100_HOST)]
    assert 0 < half[0].gain <= half[1].gain


def test_csr_gains_where_relus_are() -> None:
    """Section 4.2: CSR helps CNNs, and neither BERT-XLarge nor HBMP, which have no ReLU."""
    packed, whole = (
        {one.network: one for one in gpu_speed.best(codec=codec)} for codec in (gpu_speed.CSR, gpu_speed.NO_CODEC)
    )
    assert packed["BERT-XLarge"] == whole["BERT-XLarge"]
    for name in ("ResNet-1922", "DenseNet-1001"):
        assert packed[name].gain > whole[name].gain


def test_csr_has_the_codecs_ratio() -> None:
    """Of float32 with 59 % zeros, the middle of the 43 to 75 % that ReLUs make (section 3.3)."""
    count = 1 << 20
    values = torch.rand(count, generator=torch.Generator().manual_seed(0)) + 1
    values[torch.randperm(count, generator=torch.Generator().manual_seed(1))[: round(0.59 * count)]] = 0
    assert encode(values, "csr").ratio == pytest.approx(gpu_speed.CSR.rectified, rel=1e-3)


def test_layers_gain_as_the_paper_says() -> None:
    """Section 4.2: LSTM layers benefit most, convolutions less; both at any batch more than at the best one."""
    convolution, product, lstm = gpu_layers.LAYERS
    for own in gpu_layers.LAYERS:
        assert own.gain(own.plain_batch) == 1
        assert 1 < own.gain(own.best_batch) < min(own.most_gain, own.best_batch / own.plain_batch)
    assert lstm.gain(lstm.best_batch) > convolution.gain(convolution.best_batch) > product.gain(product.best_batch)
    assert convolution.gain(16) == pytest.approx((16 / 0.446) / (4 / (0.312 - 4 * (0.446 - 0.312) / 8)))


def test_a_channel_that_moves_nothing_in_time_leaves_the_plain_batch() -> None:
    slow = replace(V100_SSD, channel_bandwidth=1e6)
    assert {(one.batch, one.gain) for one in gpu_speed.best(slow)} == {
        (one.plain_batch, 0.0) for one in gpu_speed.best()
    }
