"""How rollouts grow: agents, the agent loop, strategies, and the session that drives one task's tree."""
