"""A process that writes steps from shared memory, and finishes them if the training process dies."""
