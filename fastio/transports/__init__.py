"""What a transport is, and the registry of all."""
