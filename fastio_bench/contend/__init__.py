"""``fastio-bench contend``: files and training beside processes that take memory bandwidth."""
