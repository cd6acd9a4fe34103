"""The functions of ``trunkline.compat`` under the name that they were documented by first."""

from __future__ import annotations

from trunkline.compat import Node, agentic_loop, aggregate_results, integrate, run_parallel_rollouts

__all__ = ["Node", "agentic_loop", "aggregate_results", "integrate", "run_parallel_rollouts"]
