"""The simulated models of ``docs/design/sim.md``; they read the language of ``sim.world`` and never its facts."""
