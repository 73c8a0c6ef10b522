"""``fastio-bench doctor``: what is installed, what is missing, and why something is slow."""
