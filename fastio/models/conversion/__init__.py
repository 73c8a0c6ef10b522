"""Converts files of tensors from one format into another."""

from fastio.models.conversion.convert import Conversion, convert

__all__ = ["Conversion", "convert"]
