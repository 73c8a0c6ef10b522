"""Files at remote places, named by fsspec URLs: read through a local cache, written locally and then uploaded."""
