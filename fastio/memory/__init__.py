"""Memory that bytes are moved through and into: staging buffers, load buffers, raw addresses."""
