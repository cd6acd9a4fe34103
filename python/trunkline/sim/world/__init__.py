"""The embedded world: a closed corpus, its questions, and the language both are written in.

Import from the modules: ``language`` and ``arithmetic`` (the grammars, which the simulated models read too),
``generator`` (makes a world), ``proof`` (derives an answer from the text alone), ``files`` (writes, reads and
renames) and ``index`` (full-text search).
"""
