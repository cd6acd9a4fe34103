"""The simulated models: tokenizer, chat template and the generative model of ``docs/design/sim.md``.

Import from the modules: ``registry`` (a model's name to its behaviour), ``choices`` (how it errs), ``tokenizer`` and
``chat_template`` (text to token ids and back). They read the language of ``trunkline.sim.world`` and never its facts.
"""
