"""``fastio-bench store``: the block store beside fio."""
