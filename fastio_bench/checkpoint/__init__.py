"""``fastio-bench checkpoint``: saving and restoring a training's state."""
