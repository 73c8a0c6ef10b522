"""Files: opened, replaced atomically, with permissions and direct I/O."""
