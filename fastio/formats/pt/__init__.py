"""``.pt``: torch's zip archives, written and read."""
