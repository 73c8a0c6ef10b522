"""The checkpoint folder: a folder for each step, the manifests, and the lock."""
