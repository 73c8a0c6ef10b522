"""Transports, one a file. Only :mod:`fastio.transports.registry` imports them, by name, when they are asked for."""
