"""Which layers move how (MemFerry, section IV). Pure."""
