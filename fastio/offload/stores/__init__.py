"""Where saved tensors go: host memory, a block store, files."""
