"""The papers' networks from their shapes: as many parameters as the real ones, and what follows from their bytes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastio_bench.papers import vdnn_six
from fastio_bench.papers.flashneuron_networks import densenet_1001, encoder, every, resnet_1922
from fastio_bench.papers.vdnn_shapes import CONV, JOIN, POOL, Shaped, alexnet, googlenet, overfeat, six
from fastio_bench.workloads import shapes, shapes_vision


class TestVdnn:
    def test_alexnet_has_the_parameters_of_torchvisions(self) -> None:
        assert sum(alexnet().weights) == shapes.parameters(shapes_vision.alexnet())

    def test_outputs_equal_those_of_real_layers(self) -> None:
        """OverFeat's features, by torch."""
        layers: list[nn.Module] = [
            *(nn.Conv2d(3, 96, 11, 4), nn.MaxPool2d(2, 2), nn.Conv2d(96, 256, 5), nn.MaxPool2d(2, 2)),
            *(nn.Conv2d(256, 512, 3, 1, 1), nn.Conv2d(512, 1024, 3, 1, 1), nn.Conv2d(1024, 1024, 3, 1, 1)),
            nn.MaxPool2d(2, 2),
        ]
        values, found = torch.empty(2, 3, 231, 231, device="meta"), []
        for layer in layers:
            values = layer.to("meta")(values)
            found.append(values.nbytes)
        own = overfeat(2)
        assert [layer.nbytes for layer in own.layers if layer.kind in (CONV, POOL)] == found
        counts = [sum(weight.numel() for weight in layer.parameters()) for layer in layers]
        assert list(own.weights[1 : len(layers) + 1]) == counts

    def test_googlenet_joins_nine_times(self) -> None:
        own = googlenet(1)
        channels = [192, 256, 480, 512, 512, 512, 528, 832, 832, 1024]
        sides = [28, 28, 28, 14, 14, 14, 14, 14, 7, 7]
        joined = [layer.nbytes for layer in own.layers if layer.kind == JOIN]
        assert joined == [4 * width * side**2 for width, side in zip(channels[1:], sides[1:], strict=True)]
        assert sum(own.weights) == 6_998_552  # without the auxiliary classifiers

    @pytest.mark.parametrize("own", six(), ids=lambda own: f"{own.name}-{own.batch}")
    def test_a_network_wide_allocation_has_room_for_every_layer(self, own: Shaped) -> None:
        assert 0 < vdnn_six.unused(own) < 100
        assert 0 < vdnn_six.features(own) < 100
        assert own.classifier_nbytes < own.baseline_nbytes

    def test_memory_of_alexnet_is_the_papers(self) -> None:
        assert alexnet().baseline_nbytes / 1e9 == pytest.approx(1.1, abs=0.1)

    def test_policies_trade_memory_for_time(self) -> None:
        every, fast, convolutions, dynamic = (
            vdnn_six.simulated(way) for way in ("vdnn-all (m)", "vdnn-all (p)", "vdnn-conv (m)", "vdnn-dyn")
        )
        for one, faster, other, chosen in zip(every, fast, convolutions, dynamic, strict=True):
            assert one.most_nbytes <= min(faster.most_nbytes, other.most_nbytes)
            assert one.average_nbytes <= min(faster.average_nbytes, other.average_nbytes, chosen.average_nbytes)
            assert one.slowdown >= max(faster.slowdown, other.slowdown)
            assert chosen.runs
            assert 1 <= chosen.slowdown <= one.slowdown

    def test_savings_and_losses_are_near_the_papers(self) -> None:
        """Section V-A: 73 % of the most, 93 % of the average; section V-C: 97 % of the throughput, 82 % at worst."""
        assert vdnn_six.saved("vdnn-all (m)") == pytest.approx(73, abs=3)
        assert vdnn_six.saved("vdnn-all (m)", average=True) == pytest.approx(93, abs=3)
        assert vdnn_six.lost("vdnn-dyn") == pytest.approx(3, abs=3)
        assert max(one.slowdown for one in vdnn_six.simulated("vdnn-dyn")) <= 1.18


class TestFlashNeuron:
    def test_parameters_equal_those_of_the_real_networks(self) -> None:
        """The same builders at the published depths."""
        assert resnet_1922((3, 8, 36, 3)).parameter_nbytes == 4 * shapes.parameters(shapes_vision.resnet((3, 8, 36, 3)))
        assert densenet_1001((6, 12, 48, 32)).parameter_nbytes == 4 * 20_013_928  # torchvision's DenseNet-201
        assert encoder("BERT-large", 24, 1024, 16, 384, 24).parameter_nbytes == 4 * shapes.parameters(shapes.bert())

    def test_products_equal_those_that_torchvision_publishes(self) -> None:
        """In billions, for ResNet-152 and DenseNet-201."""
        assert resnet_1922((3, 8, 36, 3)).products / 1e9 == pytest.approx(11.51, abs=0.005)
        assert densenet_1001((6, 12, 48, 32)).products / 1e9 == pytest.approx(4.29, abs=0.005)

    def test_gain_at_a_constant_rate_is_below_the_papers(self) -> None:
        """Larger batches share the parameters' traffic: of BERT-XLarge, 25.5 GB beside 2 examples of 106 ms."""
        resnet, densenet, bert = every()
        assert bert.most_gain == pytest.approx(100 * (10 * 2.5498 / 900) / (2 * 3 * 2 * 246.42 / 14e3), rel=1e-3)
        assert all(0 < own.most_gain < 25 for own in (resnet, densenet, bert))

    def test_block_keeps_what_torch_saves(self) -> None:
        """A bottleneck of ResNet's first stage, its input counted once and ReLU in place."""
        block = nn.Sequential(
            *(nn.Conv2d(256, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
            *(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
            *(nn.Conv2d(64, 256, 1, bias=False), nn.BatchNorm2d(256)),
        )
        saved: dict[int, int] = {}
        parameters = {parameter.data_ptr() for parameter in block.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in parameters and tensor.nbytes > 4096:
                saved[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made: set[int] = set()
            for layer in block:
                if isinstance(layer, nn.ReLU):
                    layer.register_forward_hook(lambda layer, taken, out: made.add(out.data_ptr()))
            values = torch.rand(1, 256, 56, 56).relu().requires_grad_()  # a ReLU made it, too
            made.add(values.data_ptr())
            block(values).sum()
        assert sum(saved.values()) == resnet_1922().kept[1]
        assert sum(nbytes for address, nbytes in saved.items() if address in made) == resnet_1922().rectified[1]

    def test_offload_trains_larger_batches(self) -> None:
        for own in every():
            assert own.largest_batch > 10 * own.plain_batch > 0
            assert 0 < own.kept_share(1) < own.kept_share(8) < 100
