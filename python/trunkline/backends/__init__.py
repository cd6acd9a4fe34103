"""Where workers run: processes, inline, Ray."""
