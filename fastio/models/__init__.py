"""Weights of models: whole files, parts of them, many files, and straight into modules."""

from fastio.models.single_file import load_file, save_file
from fastio.models.tensor_reader import TensorReader, safe_open

__all__ = ["TensorReader", "load_file", "safe_open", "save_file"]
