"""Tasks read from files."""
