"""Reports on trajectories: compressed reasoning, extracted without a model or written by one."""
