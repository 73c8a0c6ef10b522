"""Codecs: encode bytes before they leave the device."""
