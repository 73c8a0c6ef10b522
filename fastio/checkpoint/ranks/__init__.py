"""The ranks of a training that save and restore steps together."""
