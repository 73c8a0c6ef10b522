"""What the figures are measured on, and its limits: disk, memory, bandwidth."""
