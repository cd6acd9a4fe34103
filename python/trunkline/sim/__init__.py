"""A closed world of documents and questions, simulated models, their HTTP server, and tools over the world."""
