"""Dynamic batching over generators of lists."""
