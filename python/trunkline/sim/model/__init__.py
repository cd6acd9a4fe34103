"""The simulated models: tokenizer, chat template and the generative model of ``docs/design/sim.md``.

Import from the modules: ``catalog`` (a model's name to its behaviour), ``dials`` (how it errs), ``bpe`` and
``chat`` (text to token ids and back). They read the language of ``trunkline.sim.world`` and never its facts.
"""
