"""The loader for vLLM against a stand-in of vLLM's loader classes: vLLM itself does not install here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

import fastio
from stand_in_package import stand_in_package

# What the loader uses of vLLM, in the shapes that its sources have: the registry, and a default loader that finds files
# by the name of the format and reads them by a safe_open that was imported before.
STAND_IN = {
    "__init__.py": "",
    "model_executor/__init__.py": "",
    "model_executor/model_loader/__init__.py": """
from vllm.model_executor.model_loader.default_loader import BaseModelLoader, DefaultModelLoader

loaders = {"auto": DefaultModelLoader, "safetensors": DefaultModelLoader}

def register_model_loader(load_format):
    def register(loader):
        if not issubclass(loader, BaseModelLoader):
            raise ValueError("The model loader must be a subclass of `BaseModelLoader`.")
        loaders[load_format] = loader
        return loader
    return register

def get_model_loader(load_config):
    return loaders[load_config.load_format](load_config)
""",
    "model_executor/model_loader/default_loader.py": """
import glob, os
from safetensors.torch import safe_open

class BaseModelLoader:
    def __init__(self, load_config):
        self.load_config = load_config

class DefaultModelLoader(BaseModelLoader):
    def download_model(self, model_config):
        self._prepare_weights(model_config.model)

    def load_weights(self, model, model_config):
        model.load_weights(self._weights(model_config.model))

    def _prepare_weights(self, folder):
        if self.load_config.load_format not in ("auto", "safetensors"):
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        return sorted(glob.glob(os.path.join(folder, "*.safetensors")))

    def _weights(self, folder):
        for path in self._prepare_weights(folder):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():
                    yield name, file.get_tensor(name)
""",
}


class Model(torch.nn.Linear):
    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor)


@pytest.fixture
def vllm_loaders(tmp_path: Path) -> Iterator[ModuleType]:
    with stand_in_package("vllm", STAND_IN, tmp_path, "fastio.integrations.vllm"):
        yield importlib.import_module("vllm.model_executor.model_loader")


def test_load_format_fastio_reads_with_fastio(vllm_loaders: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved, model = Model(3, 2), Model(3, 2)
    safetensors.torch.save_file({"weight": saved.weight.data}, tmp_path / "model-00001-of-00002.safetensors")
    safetensors.torch.save_file({"bias": saved.bias.data}, tmp_path / "model-00002-of-00002.safetensors")
    (plugin,) = entry_points(group="vllm.general_plugins", name="fastio")
    register = plugin.load()
    register()
    register()  # vLLM may call it more than once in a process
    config = SimpleNamespace(load_format="fastio")
    loader = vllm_loaders.get_model_loader(config)
    original = vllm_loaders.default_loader.safe_open
    with fastio.record() as transfers:
        loader.download_model(SimpleNamespace(model=str(tmp_path)))
        loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
    assert torch.equal(model.weight, saved.weight)
    assert torch.equal(model.bias, saved.bias)
    assert [Path(one.path).name for one in transfers] == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert vllm_loaders.default_loader.safe_open is original
    assert config.load_format == "fastio"
