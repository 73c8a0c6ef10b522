"""Simulated iterations: time, memory, the largest batch. Pure."""
