"""``fastio-bench io``: every tool at every size."""
