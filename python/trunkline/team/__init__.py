"""Teams: several agents and a program over one rollout."""
