"""A plug-in for SGLang: ``SGLANG_PLUGINS=fastio`` has its default loader read files of safetensors with fastio.

SGLang finds it by the entry point ``fastio`` of the group ``sglang.srt.plugins``, in each of its processes. Which files
are read, names, quantization and the share of each rank stay SGLang's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fastio.integrations.safetensors_patch import patch_safetensors

LOAD_MODEL = "sglang.srt.model_loader.loader.DefaultModelLoader.load_model"


def read_with_fastio(load_model: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call SGLang's own ``load_model`` inside :func:`fastio.patch_safetensors`."""
    with patch_safetensors():
        return load_model(*arguments, **keywords)


def register() -> None:
    """Hook SGLang's default loader if ``SGLANG_PLUGINS`` names fastio.

    SGLang calls every plug-in that is installed if the variable is not set: then nothing changes.
    """
    if "fastio" in (name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")):
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(LOAD_MODEL, read_with_fastio, HookType.AROUND)
