"""The world: a closed corpus, its questions, and the language of both."""
