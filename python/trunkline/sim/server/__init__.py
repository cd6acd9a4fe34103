"""An OpenAI-compatible HTTP server for the simulated models; ``python -m trunkline.sim.server`` runs it.

Import from the modules: ``app`` (``serve``, ``start_server``) and ``options`` (``Settings``). Nothing
here imports the client side of Trunkline, so an error there cannot cancel itself out.
"""
