"""Crafted files of each format, on which fastio must agree with the format's own library."""
