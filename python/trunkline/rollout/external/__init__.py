"""Rollouts of agents of other frameworks, whose model calls come by the gateway."""
