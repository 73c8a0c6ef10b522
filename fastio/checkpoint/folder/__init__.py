"""A checkpoint folder: one folder a step, its manifest, its lock."""
