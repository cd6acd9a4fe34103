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
    from trunkline.runtime.rescoring import Rescored, arescore, rescore
    from trunkline.runtime.result import Run
    from trunkline.runtime.run import Interrupted, arun, run, stream
    from trunkline.runtime.snapshot import Snapshot
    from trunkline.runtime.tracing import Tracing
    from trunkline.score import filters, metrics, rewards
    from trunkline.score.aggregators.aggregate import aggregate
    from trunkline.score.aggregators.aggregator import Candidate, Decision
    from trunkline.score.aggregators.integrate import Integrate
    from trunkline.score.aggregators.synthesis import Synthesis
    from trunkline.score.aggregators.votes import BestOfN, Majority, Weighted
    from trunkline.score.filters.filter import Filter
    from trunkline.score.notes import Graded
    from trunkline.score.reports.extract import extract as extract_report
    from trunkline.score.reports.reporter import Reporter
    from trunkline.score.rewards import (
        F1,
        Choice,
        Maths,
        Numeric,
        Scored,
        WeightedRewards,
        contains,
        exact_match,
        numeric_match,
        weighted,
    )
    from trunkline.score.rewards.code.code import Code
    from trunkline.score.rewards.judge.judge import Judge
    from trunkline.score.rewards.policy import reward
    from trunkline.score.verdicts import Verdict
    from trunkline.store.compare import compare
    from trunkline.store.dataset import load_tasks
    from trunkline.store.export.export import Exported, export
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
    "BestOfN": "score.aggregators.votes",
    "Boxed": "team.projection",
    "Budget": "rollout.budget",
    "Call": "tools.call",
    "Candidate": "score.aggregators.aggregator",
    "Chain": "rollout.strategies.chain",
    "Choice": "score.rewards",
    "ClientLLM": "llm.client",
    "Code": "score.rewards.code.code",
    "Completion": "llm.completion",
    "Decision": "score.aggregators.aggregator",
    "Dialect": "llm.dialects.dialect",
    "Drop": "rollout.strategy",
    "EntropyTree": "rollout.strategies.entropy_tree",
    "Environment": "tools.environment",
    "ExpertsTeam": "team.programs.experts",
    "Exported": "store.export.export",
    "F1": "score.rewards",
    "Filter": "score.filters.filter",
    "Fork": "rollout.strategy",
    "Graded": "score.notes",
    "Hermes": "llm.dialects.hermes",
    "Integrate": "score.aggregators.integrate",
    "Interrupted": "runtime.run",
    "Judge": "score.rewards.judge.judge",
    "LLM": "llm.spec:EndpointSpec",
    "Limits": "llm.limits",
    "MCTS": "rollout.strategies.mcts",
    "Majority": "score.aggregators.votes",
    "MathTeam": "team.programs.math",
    "Maths": "score.rewards",
    "Metrics": "runtime.metrics",
    "Node": "tree.node",
    "Noted": "rollout.said",
    "Numeric": "score.rewards",
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
    "Reporter": "score.reports.reporter",
    "Rescored": "runtime.rescoring",
    "Role": "team.role",
    "Routing": "llm.limits",
    "Run": "runtime.result",
    "RunReader": "store.reader",
    "Said": "team.play",
    "SampledGroups": "runtime.groups",
    "Sampling": "llm.request",
    "Scored": "score.rewards",
    "SearchR1": "llm.dialects.search_r1",
    "SearchTeam": "team.programs.search",
    "Snapshot": "runtime.snapshot",
    "Stop": "rollout.strategy",
    "Strategy": "rollout.strategy",
    "Synthesis": "score.aggregators.synthesis",
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
    "Weighted": "score.aggregators.votes",
    "WeightedRewards": "score.rewards",
    "Whole": "team.projection",
    "__version__": "_core",
    "aggregate": "score.aggregators.aggregate",
    "arescore": "runtime.rescoring",
    "arun": "runtime.run",
    "asample_groups": "runtime.groups",
    "compare": "store.compare",
    "contains": "score.rewards",
    "current_call": "tools.call",
    "errors": "errors:",
    "exact_match": "score.rewards",
    "export": "store.export.export",
    "extract_report": "score.reports.extract:extract",
    "filters": "score.filters:",
    "load_tasks": "store.dataset",
    "log_to": "runtime.logs",
    "metrics": "score.metrics:",
    "numeric_match": "score.rewards",
    "plan": "runtime.plan",
    "rescore": "runtime.rescoring",
    "reward": "score.rewards.policy",
    "rewards": "score.rewards:",
    "run": "runtime.run",
    "sample_groups": "runtime.groups",
    "stream": "runtime.run",
    "tokens_with": "llm.renderer.local",
    "tool": "tools.tool",
    "train": "train:",
    "weighted": "score.rewards",
}

__all__ = [
    "F1",
    "LLM",
    "MCTS",
    "Adaptive",
    "Agent",
    "Answered",
    "BatchLLM",
    "BestOfN",
    "Boxed",
    "Budget",
    "Call",
    "Candidate",
    "Chain",
    "Choice",
    "ClientLLM",
    "Code",
    "Completion",
    "Decision",
    "Dialect",
    "Drop",
    "EntropyTree",
    "Environment",
    "ExpertsTeam",
    "Exported",
    "Filter",
    "Fork",
    "Graded",
    "Hermes",
    "Integrate",
    "Interrupted",
    "Judge",
    "Limits",
    "Majority",
    "MathTeam",
    "Maths",
    "Metrics",
    "Node",
    "Noted",
    "Numeric",
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
    "Reporter",
    "Rescored",
    "Role",
    "Routing",
    "Run",
    "RunReader",
    "Said",
    "SampledGroups",
    "Sampling",
    "Scored",
    "SearchR1",
    "SearchTeam",
    "Snapshot",
    "Stop",
    "Strategy",
    "Synthesis",
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
    "Weighted",
    "WeightedRewards",
    "Whole",
    "__version__",
    "aggregate",
    "arescore",
    "arun",
    "asample_groups",
    "compare",
    "contains",
    "current_call",
    "errors",
    "exact_match",
    "export",
    "extract_report",
    "filters",
    "load_tasks",
    "log_to",
    "metrics",
    "numeric_match",
    "plan",
    "rescore",
    "reward",
    "rewards",
    "run",
    "sample_groups",
    "stream",
    "tokens_with",
    "tool",
    "train",
    "weighted",
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
