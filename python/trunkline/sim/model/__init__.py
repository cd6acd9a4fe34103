"""The simulated models of ``docs/explanation/simulator.md``; they read the language of ``sim.world``, not its facts."""
