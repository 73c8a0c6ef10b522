"""Saving a step: a snapshot, then the files."""
