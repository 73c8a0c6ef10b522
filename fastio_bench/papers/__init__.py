"""The papers' own figures, and ours beside them."""
