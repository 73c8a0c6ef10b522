"""Writes and reads ``.pt`` files, which are torch's zip archives; Fastensor has a format of its own (section 5.2.1)."""
