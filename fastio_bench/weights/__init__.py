"""``fastio-bench weights``: weights of large language models, from sharded safetensors into modules, and back."""
