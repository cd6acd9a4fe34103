"""Views over the native tree: what was done for one task, read without copying it."""
