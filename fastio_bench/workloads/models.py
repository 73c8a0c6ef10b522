"""The models of the Fastensor paper's table 9 by name: their shapes and published sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fastio_bench.workloads.shapes import Shape, bert
from fastio_bench.workloads.shapes_attention import swin, vit
from fastio_bench.workloads.shapes_vision import alexnet, mobilenet_v3, resnet, toy, vgg19


@dataclass(frozen=True, slots=True)
class Model:
    """A network: its published number of ``parameters`` and its ``source`` (0 if unknown), its state dict's ``shapes``.

    ``paper``: its name in the paper's table, or "".
    """

    name: str
    label: str
    parameters: int
    source: str
    shapes: Callable[[], dict[str, Shape]]
    paper: str = ""


_TORCHVISION, _TRANSFORMERS = "torchvision's table of weights", "transformers' model of that name"
_CHINESE = 21_128  # the vocabulary of the Chinese BERTs, also of those with whole-word masking

_EVERY = (
    Model("alexnet", "AlexNet", 61_100_840, _TORCHVISION, alexnet, "AlexNet"),
    Model("vgg19", "VGG19", 143_667_240, _TORCHVISION, vgg19, "VGG19"),
    Model("resnet152", "ResNet152", 60_192_808, _TORCHVISION, partial(resnet, (3, 8, 36, 3)), "ResNet152"),
    Model(
        "wide-resnet50-2", "Wide ResNet50-2", 68_883_240, _TORCHVISION, partial(resnet, (3, 4, 6, 3), 2), "WideResNet50"
    ),
    Model("vit-b-32", "ViT-B/32", 88_224_232, _TORCHVISION, partial(vit, 32, 12, 768), "ViT-B/32"),
    Model("swin-b", "Swin-B", 87_768_224, _TORCHVISION, partial(swin, (2, 2, 18, 2), 128, (4, 8, 16, 32)), "Swin-B"),
    Model("vit-h-14", "ViT-H/14", 632_045_800, f"{_TORCHVISION}, 224 x 224", partial(vit, 14, 32, 1280), "ViT-H/14"),
    Model(
        "mobilenet-v3-small",
        "MobileNetV3-Small",
        2_542_856,
        _TORCHVISION,
        partial(mobilenet_v3, large=False),
        "MobileNetV3",
    ),
    Model("mobilenet-v3-large", "MobileNetV3-Large", 5_483_032, _TORCHVISION, partial(mobilenet_v3, large=True)),
    Model("toy", "Toy", 0, "", toy, "Toy"),
    Model("bert-base-chinese", "BERT, Chinese", 102_267_648, _TRANSFORMERS, partial(bert, 12, 768, _CHINESE), "BERT"),
    Model("bert-base-uncased", "BERT, uncased", 109_482_240, _TRANSFORMERS, partial(bert, 12, 768)),
)
MODELS = {model.name: model for model in _EVERY}
