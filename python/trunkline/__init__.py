"""Trunkline runs LLM-agent rollouts: many questions, many tries each, many processes, on one tree per task.

Everything public is here; each name is imported from its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trunkline import errors, train
    from trunkline._core import __version__
    from trunkline.errors import ToolError, TrunklineError
    from trunkline.llm.batch import BatchLLM
    from trunkline.llm.client import ClientLLM
    from trunkline.llm.completion import Completion
    from trunkline.llm.dialects.dialect import Dialect, Parsed
    from trunkline.llm.dialects.hermes import Hermes
    from trunkline.llm.dialects.search_r1 import SearchR1
    from trunkline.llm.limits import Limits, Routing
    from trunkline.llm.price import Price
    from trunkline.llm.prompt import Prompt
    from trunkline.llm.protocol import ToolCall
    from trunkline.llm.renderer.local import tokens_with
    from trunkline.llm.request import Sampling
    from trunkline.llm.spec import EndpointSpec as LLM  # noqa: N814 - the name that users know it by
    from trunkline.llm.tokens import TokenMode
    from trunkline.rollout.agent import Agent
    from trunkline.rollout.budget import Budget
    from trunkline.rollout.play import Play
    from trunkline.rollout.said import Answered, Noted
    from trunkline.rollout.strategies.adaptive import Adaptive
    from trunkline.rollout.strategies.chain import Chain
    from trunkline.rollout.strategies.entropy_tree import EntropyTree
    from trunkline.rollout.strategies.mcts import MCTS
    from trunkline.rollout.strategies.partial import Partial
    from trunkline.rollout.strategies.tree_grpo import TreeGRPO
    from trunkline.rollout.strategies.tree_search import TreeSearch
    from trunkline.rollout.strategy import Drop, Fork, Stop, Strategy
    from trunkline.runtime.groups import SampledGroups, asample_groups, sample_groups
    from trunkline.runtime.logs import log_to
    from trunkline.runtime.metrics import Metrics
    from trunkline.runtime.options import Options
    from trunkline.runtime.outline import Outline
    from trunkline.runtime.plan import plan
    from trunkline.runtime.pool import Pool
    from trunkline.runtime.result import Run
    from trunkline.runtime.run import Interrupted, arun, run, stream
    from trunkline.runtime.snapshot import Snapshot
    from trunkline.runtime.tracing import Tracing
    from trunkline.score import filters
    from trunkline.score.filters.filter import Filter
    from trunkline.score.rewards import contains, exact_match, numeric_match
    from trunkline.score.rewards.code.code import Code
    from trunkline.score.rewards.judge.judge import Judge
    from trunkline.score.verdicts import Verdict
    from trunkline.store.dataset import load_tasks
    from trunkline.store.reader import RunReader
    from trunkline.team.play import Said, TeamPlay
    from trunkline.team.programs.experts import ExpertsTeam
    from trunkline.team.programs.math import MathTeam
    from trunkline.team.programs.search import SearchTeam
    from trunkline.team.projection import Boxed, Projected, Projection, Tag, Whole
    from trunkline.team.role import Role
    from trunkline.team.team import Team
    from trunkline.tools.call import Call, current_call
    from trunkline.tools.environment import Environment
    from trunkline.tools.tool import Tool, tool
    from trunkline.tree.node import Node
    from trunkline.tree.trajectory import Trajectory
    from trunkline.tree.tree import Tree
    from trunkline.types import Task, Termination, Usage

_HOMES = {
    "Adaptive": "rollout.strategies.adaptive",
    "Agent": "rollout.agent",
    "Answered": "rollout.said",
    "BatchLLM": "llm.batch",
    "Boxed": "team.projection",
    "Budget": "rollout.budget",
    "Call": "tools.call",
    "Chain": "rollout.strategies.chain",
    "ClientLLM": "llm.client",
    "Code": "score.rewards.code.code",
    "Completion": "llm.completion",
    "Dialect": "llm.dialects.dialect",
    "Drop": "rollout.strategy",
    "EntropyTree": "rollout.strategies.entropy_tree",
    "Environment": "tools.environment",
    "ExpertsTeam": "team.programs.experts",
    "Filter": "score.filters.filter",
    "Fork": "rollout.strategy",
    "Hermes": "llm.dialects.hermes",
    "Interrupted": "runtime.run",
    "Judge": "score.rewards.judge.judge",
    "LLM": "llm.spec:EndpointSpec",
    "Limits": "llm.limits",
    "MCTS": "rollout.strategies.mcts",
    "MathTeam": "team.programs.math",
    "Metrics": "runtime.metrics",
    "Node": "tree.node",
    "Noted": "rollout.said",
    "Options": "runtime.options",
    "Outline": "runtime.outline",
    "Parsed": "llm.dialects.dialect",
    "Partial": "rollout.strategies.partial",
    "Play": "rollout.play",
    "Pool": "runtime.pool",
    "Price": "llm.price",
    "Projected": "team.projection",
    "Projection": "team.projection",
    "Prompt": "llm.prompt",
    "Role": "team.role",
    "Routing": "llm.limits",
    "Run": "runtime.result",
    "RunReader": "store.reader",
    "Said": "team.play",
    "SampledGroups": "runtime.groups",
    "Sampling": "llm.request",
    "SearchR1": "llm.dialects.search_r1",
    "SearchTeam": "team.programs.search",
    "Snapshot": "runtime.snapshot",
    "Stop": "rollout.strategy",
    "Strategy": "rollout.strategy",
    "Tag": "team.projection",
    "Task": "types",
    "Team": "team.team",
    "TeamPlay": "team.play",
    "Termination": "types",
    "TokenMode": "llm.tokens",
    "Tool": "tools.tool",
    "ToolCall": "llm.protocol",
    "ToolError": "errors",
    "Tracing": "runtime.tracing",
    "Trajectory": "tree.trajectory",
    "Tree": "tree.tree",
    "TreeGRPO": "rollout.strategies.tree_grpo",
    "TreeSearch": "rollout.strategies.tree_search",
    "TrunklineError": "errors",
    "Usage": "types",
    "Verdict": "score.verdicts",
    "Whole": "team.projection",
    "__version__": "_core",
    "arun": "runtime.run",
    "asample_groups": "runtime.groups",
    "contains": "score.rewards",
    "current_call": "tools.call",
    "errors": "errors:",
    "exact_match": "score.rewards",
    "filters": "score.filters:",
    "load_tasks": "store.dataset",
    "log_to": "runtime.logs",
    "numeric_match": "score.rewards",
    "plan": "runtime.plan",
    "run": "runtime.run",
    "sample_groups": "runtime.groups",
    "stream": "runtime.run",
    "tokens_with": "llm.renderer.local",
    "tool": "tools.tool",
    "train": "train:",
}

__all__ = [
    "LLM",
    "MCTS",
    "Adaptive",
    "Agent",
    "Answered",
    "BatchLLM",
    "Boxed",
    "Budget",
    "Call",
    "Chain",
    "ClientLLM",
    "Code",
    "Completion",
    "Dialect",
    "Drop",
    "EntropyTree",
    "Environment",
    "ExpertsTeam",
    "Filter",
    "Fork",
    "Hermes",
    "Interrupted",
    "Judge",
    "Limits",
    "MathTeam",
    "Metrics",
    "Node",
    "Noted",
    "Options",
    "Outline",
    "Parsed",
    "Partial",
    "Play",
    "Pool",
    "Price",
    "Projected",
    "Projection",
    "Prompt",
    "Role",
    "Routing",
    "Run",
    "RunReader",
    "Said",
    "SampledGroups",
    "Sampling",
    "SearchR1",
    "SearchTeam",
    "Snapshot",
    "Stop",
    "Strategy",
    "Tag",
    "Task",
    "Team",
    "TeamPlay",
    "Termination",
    "TokenMode",
    "Tool",
    "ToolCall",
    "ToolError",
    "Tracing",
    "Trajectory",
    "Tree",
    "TreeGRPO",
    "TreeSearch",
    "TrunklineError",
    "Usage",
    "Verdict",
    "Whole",
    "__version__",
    "arun",
    "asample_groups",
    "contains",
    "current_call",
    "errors",
    "exact_match",
    "filters",
    "load_tasks",
    "log_to",
    "numeric_match",
    "plan",
    "run",
    "sample_groups",
    "stream",
    "tokens_with",
    "tool",
    "train",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trunkline' has no attribute {name!r}")
    module, colon, attribute = home.partition(":")
    value = importlib.import_module(f"trunkline.{module}")
    if not colon or attribute:
        value = getattr(value, attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
