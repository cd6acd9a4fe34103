"""An OpenAI-compatible HTTP server for the simulated models; it imports nothing of the client side."""
