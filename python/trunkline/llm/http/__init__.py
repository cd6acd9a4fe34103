"""LLMs over HTTP: one call over its attempts, transports, connections."""
