"""Weights of models: whole files, parts of them, many files, and straight into modules."""

from fastio.models.module_loading import load_model
from fastio.models.module_saving import save_model
from fastio.models.opening import safe_open
from fastio.models.single_file import load_file, save_file
from fastio.models.state_loading import load_into
from fastio.models.tensor_reader import TensorReader

__all__ = [
    "TensorReader",
    "load_file",
    "load_into",
    "load_model",
    "safe_open",
    "save_file",
    "save_model",
]
