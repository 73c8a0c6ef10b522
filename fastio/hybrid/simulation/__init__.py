"""Simulates machines and timelines. Pure."""
