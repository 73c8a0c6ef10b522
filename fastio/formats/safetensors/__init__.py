"""Writes and reads ``.safetensors`` files."""
