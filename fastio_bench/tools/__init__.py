"""``fastio-bench tools`` and ``tune``: how near the dictionaries come to the best tool."""
