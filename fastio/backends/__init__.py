"""Transports, one a file. Only :mod:`fastio.registry` imports them, by name, when they are asked for."""
