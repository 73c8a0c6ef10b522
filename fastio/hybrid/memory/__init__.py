"""Host and device memory of hybrid training, and the copies between them."""
