"""Restores a step: outlines its pickle, reads its bytes, and puts its values into live objects."""
