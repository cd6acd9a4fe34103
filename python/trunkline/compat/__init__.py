"""The library under names and signatures that other projects' examples use.

``run_parallel_rollouts`` tries one question many times, ``agentic_loop`` plays one conversation to its end, and
``aggregate_results`` or ``integrate`` make one answer of the results, which are plain JSON data.
"""

from trunkline.compat.aggregate import Node, aggregate_results, integrate
from trunkline.compat.rollouts import agentic_loop, run_parallel_rollouts

__all__ = ["Node", "agentic_loop", "aggregate_results", "integrate", "run_parallel_rollouts"]
