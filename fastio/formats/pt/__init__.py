"""Writes and reads ``.pt`` files, which are torch's zip archives."""
