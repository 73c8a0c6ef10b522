"""Crafted files of each format, for which fastio must agree with the format's own library."""
