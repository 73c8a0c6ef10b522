"""Plans which layers move, and how (MemFerry, section IV). Pure."""
