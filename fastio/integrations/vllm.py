"""A model loader for vLLM: ``--load-format fastio`` reads files of safetensors with fastio.

vLLM finds it by the entry point ``fastio`` of the group ``vllm.general_plugins``. It is vLLM's default loader inside
:func:`fastio.patch_safetensors`: which files are read, names, quantization and the share of each rank stay vLLM's.
"""

from __future__ import annotations

import copy
from typing import Any

from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from fastio.integrations.safetensors_patch import patch_safetensors

LOAD_FORMAT = "fastio"


class FastModelLoader(DefaultModelLoader):
    """vLLM's default loader for safetensors, with fastio in the place of the library's ``safe_open``."""

    def __init__(self, load_config: Any) -> None:
        known = copy.copy(load_config)  # the default loader chooses files by the names of its own formats
        known.load_format = "safetensors"
        super().__init__(known)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Read the weights into a model."""
        with patch_safetensors():
            super().load_weights(model, model_config)


def register() -> None:
    """Make the loader known to vLLM, which calls this in each of its processes."""
    register_model_loader(LOAD_FORMAT)(FastModelLoader)
