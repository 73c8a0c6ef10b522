"""The tensors and networks that are saved, loaded and trained."""
