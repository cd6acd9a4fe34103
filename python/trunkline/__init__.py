"""Trunkline runs LLM-agent rollouts: many questions, many tries each, many processes, on one tree per task.

Everything public is here; each name is imported from its module when it is first used.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trunkline import errors, train
    from trunkline._core import __version__
    from trunkline.agent import Agent
    from trunkline.errors import ToolError, TrunklineError
    from trunkline.llm.batch.batcher import BatchLLM
    from trunkline.llm.batch.completion import Completion, Prompt
    from trunkline.llm.config import EndpointSpec as LLM  # noqa: N814 - the name that users know it by
    from trunkline.llm.dialects.base import Dialect, Parsed
    from trunkline.llm.dialects.builtin import Hermes, SearchR1
    from trunkline.llm.openai_client import ClientLLM
    from trunkline.llm.pricing import Price
    from trunkline.llm.request import Sampling
    from trunkline.llm.token_ids.base import TokenMode
    from trunkline.llm.token_ids.renderers import tokens_with
    from trunkline.llm.types import Limits, Routing, ToolCall
    from trunkline.observability.logging import log_to
    from trunkline.observability.observers import Snapshot
    from trunkline.observability.opentelemetry import Tracing
    from trunkline.observability.prometheus import Metrics
    from trunkline.rollout.budget import Budget
    from trunkline.rollout.programs.context import ContextMessage, ModelTurn, ProgramContext
    from trunkline.runner.amend import Rescored, arescore, rescore
    from trunkline.runner.dynamic_sampling import SampledGroups, asample_groups, sample_groups
    from trunkline.runner.options import Options
    from trunkline.runner.plan import plan
    from trunkline.runner.pool import Pool
    from trunkline.runner.preflight import Outline
    from trunkline.runner.result import Run
    from trunkline.runner.run import Interrupted, arun, run, stream
    from trunkline.scoring import filters, metrics, rewards
    from trunkline.scoring.aggregators.aggregate import aggregate
    from trunkline.scoring.aggregators.base import Candidate, Decision
    from trunkline.scoring.aggregators.llm import Integrate, Synthesis
    from trunkline.scoring.aggregators.voting import BestOfN, Majority, Weighted
    from trunkline.scoring.filters.base import Filter
    from trunkline.scoring.notes import Graded, Verdict
    from trunkline.scoring.reports.extractive import extract as extract_report
    from trunkline.scoring.reports.reporter import Reporter
    from trunkline.scoring.rewards import (
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
    from trunkline.scoring.rewards.base import reward
    from trunkline.scoring.rewards.code import Code
    from trunkline.scoring.rewards.judge import Judge
    from trunkline.store.datasets.loader import load_tasks
    from trunkline.store.export.export import Exported, export
    from trunkline.store.reader import RunReader
    from trunkline.store.stats.compare import compare
    from trunkline.strategies.adaptive import Adaptive
    from trunkline.strategies.base import Drop, Fork, Stop, Strategy
    from trunkline.strategies.chain import Chain
    from trunkline.strategies.entropy_tree import EntropyTree
    from trunkline.strategies.mcts import MCTS
    from trunkline.strategies.partial import Partial
    from trunkline.strategies.tree_grpo import TreeGRPO
    from trunkline.strategies.tree_search import TreeSearch
    from trunkline.team.builtin import ExpertsTeam, MathTeam, SearchTeam
    from trunkline.team.projection import Boxed, Projected, Projection, Tag, Whole
    from trunkline.team.role import Role
    from trunkline.team.team import RoleReply, Team, TeamPlay
    from trunkline.tools.calls import Call, current_call
    from trunkline.tools.environment import Environment
    from trunkline.tools.tool import Tool, tool
    from trunkline.tree.views import Node, Trajectory, Tree
    from trunkline.types import Task, Termination, Usage

_MODULES = {
    "Adaptive": "strategies.adaptive",
    "Agent": "agent",
    "BatchLLM": "llm.batch.batcher",
    "BestOfN": "scoring.aggregators.voting",
    "Boxed": "team.projection",
    "Budget": "rollout.budget",
    "Call": "tools.calls",
    "Candidate": "scoring.aggregators.base",
    "Chain": "strategies.chain",
    "Choice": "scoring.rewards",
    "ClientLLM": "llm.openai_client",
    "Code": "scoring.rewards.code",
    "Completion": "llm.batch.completion",
    "ContextMessage": "rollout.programs.context",
    "Decision": "scoring.aggregators.base",
    "Dialect": "llm.dialects.base",
    "Drop": "strategies.base",
    "EntropyTree": "strategies.entropy_tree",
    "Environment": "tools.environment",
    "ExpertsTeam": "team.builtin",
    "Exported": "store.export.export",
    "F1": "scoring.rewards",
    "Filter": "scoring.filters.base",
    "Fork": "strategies.base",
    "Graded": "scoring.notes",
    "Hermes": "llm.dialects.builtin",
    "Integrate": "scoring.aggregators.llm",
    "Interrupted": "runner.run",
    "Judge": "scoring.rewards.judge",
    "LLM": "llm.config:EndpointSpec",
    "Limits": "llm.types",
    "MCTS": "strategies.mcts",
    "Majority": "scoring.aggregators.voting",
    "MathTeam": "team.builtin",
    "Maths": "scoring.rewards",
    "Metrics": "observability.prometheus",
    "ModelTurn": "rollout.programs.context",
    "Node": "tree.views",
    "Numeric": "scoring.rewards",
    "Options": "runner.options",
    "Outline": "runner.preflight",
    "Parsed": "llm.dialects.base",
    "Partial": "strategies.partial",
    "Pool": "runner.pool",
    "Price": "llm.pricing",
    "ProgramContext": "rollout.programs.context",
    "Projected": "team.projection",
    "Projection": "team.projection",
    "Prompt": "llm.batch.completion",
    "Reporter": "scoring.reports.reporter",
    "Rescored": "runner.amend",
    "Role": "team.role",
    "RoleReply": "team.team",
    "Routing": "llm.types",
    "Run": "runner.result",
    "RunReader": "store.reader",
    "SampledGroups": "runner.dynamic_sampling",
    "Sampling": "llm.request",
    "Scored": "scoring.rewards",
    "SearchR1": "llm.dialects.builtin",
    "SearchTeam": "team.builtin",
    "Snapshot": "observability.observers",
    "Stop": "strategies.base",
    "Strategy": "strategies.base",
    "Synthesis": "scoring.aggregators.llm",
    "Tag": "team.projection",
    "Task": "types",
    "Team": "team.team",
    "TeamPlay": "team.team",
    "Termination": "types",
    "TokenMode": "llm.token_ids.base",
    "Tool": "tools.tool",
    "ToolCall": "llm.types",
    "ToolError": "errors",
    "Tracing": "observability.opentelemetry",
    "Trajectory": "tree.views",
    "Tree": "tree.views",
    "TreeGRPO": "strategies.tree_grpo",
    "TreeSearch": "strategies.tree_search",
    "TrunklineError": "errors",
    "Usage": "types",
    "Verdict": "scoring.notes",
    "Weighted": "scoring.aggregators.voting",
    "WeightedRewards": "scoring.rewards",
    "Whole": "team.projection",
    "__version__": "_core",
    "aggregate": "scoring.aggregators.aggregate",
    "arescore": "runner.amend",
    "arun": "runner.run",
    "asample_groups": "runner.dynamic_sampling",
    "compare": "store.stats.compare",
    "contains": "scoring.rewards",
    "current_call": "tools.calls",
    "errors": "errors:",
    "exact_match": "scoring.rewards",
    "export": "store.export.export",
    "extract_report": "scoring.reports.extractive:extract",
    "filters": "scoring.filters:",
    "load_tasks": "store.datasets.loader",
    "log_to": "observability.logging",
    "metrics": "scoring.metrics:",
    "numeric_match": "scoring.rewards",
    "plan": "runner.plan",
    "rescore": "runner.amend",
    "reward": "scoring.rewards.base",
    "rewards": "scoring.rewards:",
    "run": "runner.run",
    "sample_groups": "runner.dynamic_sampling",
    "stream": "runner.run",
    "tokens_with": "llm.token_ids.renderers",
    "tool": "tools.tool",
    "train": "train:",
    "weighted": "scoring.rewards",
}

_RENAMED = {
    "Answered": "ModelTurn",
    "Noted": "ContextMessage",
    "Play": "ProgramContext",
    "Said": "RoleReply",
}
"""Names of 0.1, which lead on for one release."""

__all__ = [
    "F1",
    "LLM",
    "MCTS",
    "Adaptive",
    "Agent",
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
    "ContextMessage",
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
    "ModelTurn",
    "Node",
    "Numeric",
    "Options",
    "Outline",
    "Parsed",
    "Partial",
    "Pool",
    "Price",
    "ProgramContext",
    "Projected",
    "Projection",
    "Prompt",
    "Reporter",
    "Rescored",
    "Role",
    "RoleReply",
    "Routing",
    "Run",
    "RunReader",
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
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(f"trunkline.{name} is called trunkline.{new} now", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[__name__], new)
    path = _MODULES.get(name)
    if path is None:
        raise AttributeError(f"module 'trunkline' has no attribute {name!r}")
    module, colon, attribute = path.partition(":")
    value = importlib.import_module(f"trunkline.{module}")
    if not colon or attribute:
        value = getattr(value, attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
