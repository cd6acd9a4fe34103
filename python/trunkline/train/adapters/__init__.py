"""What several adapters of trainers share: rows as lists, and an LLM over an engine that takes token ids."""
