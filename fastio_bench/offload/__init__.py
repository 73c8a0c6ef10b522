"""``fastio-bench offload``: training with activation offload."""
