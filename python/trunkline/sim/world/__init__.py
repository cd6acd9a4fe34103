"""The embedded world: a closed corpus, its questions, and the language both are written in.

Import from the modules: ``language`` and ``arithmetic`` (the grammars, which the simulated models read too),
``generator`` (makes a world), ``files`` (writes, reads, renames, and derives an answer from the text alone) and
``search`` (full-text search).
"""
