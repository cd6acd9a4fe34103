"""The embedded world: documents, questions, tools and simulated models, so that nothing else is needed to begin."""
