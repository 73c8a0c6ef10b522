"""Simulated machines and timelines. Pure."""
