"""The processes: a controller that feeds workers with tasks, and workers that send trees back."""
