"""Saves a step: takes a snapshot, then writes the files."""
