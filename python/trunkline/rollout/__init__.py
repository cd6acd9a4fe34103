"""How one task's tree grows: rounds, checkpoints, budgets, environments, the agent loop and user programs."""
