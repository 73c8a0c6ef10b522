"""One operation from start to end: choose a tool, move the bytes, fall back, check, report."""
