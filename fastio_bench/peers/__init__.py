"""``fastio-bench peers``: the same work with other libraries and with fastio."""
