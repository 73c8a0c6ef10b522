"""``fastio-bench model``: the state dicts of real models."""
