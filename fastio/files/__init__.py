"""Files: opening, atomic replacement, permissions, direct I/O."""
