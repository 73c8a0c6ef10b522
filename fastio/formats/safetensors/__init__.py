"""Writes and reads ``.safetensors`` files."""

from fastio.formats.safetensors.format import layout, source

__all__ = ["layout", "source"]
