"""Restoring a step: its outline, its bytes, its objects."""
