"""User programs over a rollout: context, executor, replay."""
