"""The optimizer's update on the CPU, with its state in memory or on an SSD."""
