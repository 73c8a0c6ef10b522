"""Transports, one a file. Only :mod:`fastio.transports.registry` imports them, by name, at first use."""
