"""Memory for transfers: staging buffers, load buffers, raw addresses."""
