"""``fastio-bench hybrid``: training with parameters in host memory."""
