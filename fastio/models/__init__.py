"""Weights of models: whole files, parts of them, many files, and straight into modules."""

from fastio.models.single_file import load_file, save_file

__all__ = ["load_file", "save_file"]
