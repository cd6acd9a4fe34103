"""A learning curve on a CPU: a small transformer that Trunkline's rollouts train to use two tools."""
