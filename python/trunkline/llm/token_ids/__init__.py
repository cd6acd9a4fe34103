"""From messages to the token ids that a model is given."""
