"""``.safetensors``: written and read."""
