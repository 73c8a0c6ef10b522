"""The plug-in for SGLang against a stand-in of its hooks and its default loader: SGLang does not install here."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

import fastio
from stand_in_package import stand_in_package

# What the plug-in uses of SGLang, in the shapes that its sources have: hooks around methods that are named by text, and
# a default loader that reads files in threads, by a safe_open that it looks up in the library.
STAND_IN = {
    "__init__.py": "",
    "srt/__init__.py": "",
    "srt/plugins/__init__.py": "",
    "srt/plugins/hook_registry.py": """
import enum, functools, pkgutil

class HookType(enum.Enum):
    AROUND = "around"

class HookRegistry:
    hooks = []

    @classmethod
    def register(cls, target, hook, hook_type):
        cls.hooks.append((target, hook, hook_type))

    @classmethod
    def apply_hooks(cls):
        for target, hook, hook_type in cls.hooks:
            assert hook_type is HookType.AROUND
            owner, _, name = target.rpartition(".")
            setattr(pkgutil.resolve_name(owner), name, cls.around(getattr(pkgutil.resolve_name(owner), name), hook))

    @staticmethod
    def around(original, hook):
        return functools.wraps(original)(lambda *arguments, **keywords: hook(original, *arguments, **keywords))
""",
    "srt/model_loader/__init__.py": "",
    "srt/model_loader/loader.py": """
import concurrent.futures, glob, os
import safetensors

class DefaultModelLoader:
    def load_model(self, *, model_config, device_config):
        def load(path):
            with safetensors.safe_open(path, framework="pt", device="cpu") as file:
                return {name: file.get_tensor(name) for name in file.keys()}

        with concurrent.futures.ThreadPoolExecutor() as threads:
            parts = list(threads.map(load, sorted(glob.glob(os.path.join(model_config, "*.safetensors")))))
        return {name: tensor for part in parts for name, tensor in part.items()}
""",
}


@pytest.fixture
def sglang(tmp_path: Path) -> Iterator[Any]:
    with stand_in_package("sglang", STAND_IN, tmp_path):
        yield importlib.import_module("sglang.srt.plugins.hook_registry")


def load_plugins(sglang: Any) -> None:
    (plugin,) = entry_points(group="sglang.srt.plugins", name="fastio")
    plugin.load()()
    sglang.HookRegistry.apply_hooks()


@pytest.mark.parametrize(("chosen", "calls"), [("other, fastio", 2), ("", 0), ("other", 0)])
def test_the_loader_reads_with_fastio_where_the_variable_names_it(
    sglang: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, calls: int
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", chosen)
    saved = {name: torch.randn(3, 2) for name in "ab"}
    for number, name in enumerate(saved, 1):
        safetensors.torch.save_file({name: saved[name]}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    load_plugins(sglang)
    loader = importlib.import_module("sglang.srt.model_loader.loader").DefaultModelLoader()
    original = safetensors.safe_open
    with fastio.record() as transfers:
        found = loader.load_model(model_config=str(tmp_path), device_config=None)
    assert all(torch.equal(found[name], saved[name]) for name in saved)
    assert len({one.path for one in transfers}) == calls
    assert safetensors.safe_open is original
