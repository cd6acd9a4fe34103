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

_HOMES = """
_core: __version__
agent: Agent
errors: ToolError TrunklineError errors=
llm.batch.batcher: BatchLLM
llm.batch.completion: Completion Prompt
llm.config: LLM=EndpointSpec
llm.dialects.base: Dialect Parsed
llm.dialects.builtin: Hermes SearchR1
llm.openai_client: ClientLLM
llm.pricing: Price
llm.request: Sampling
llm.token_ids.base: TokenMode
llm.token_ids.renderers: tokens_with
llm.types: Limits Routing ToolCall
observability.logging: log_to
observability.observers: Snapshot
observability.opentelemetry: Tracing
observability.prometheus: Metrics
rollout.budget: Budget
rollout.programs.context: ContextMessage ModelTurn ProgramContext
runner.amend: Rescored arescore rescore
runner.dynamic_sampling: SampledGroups asample_groups sample_groups
runner.options: Options
runner.plan: plan
runner.pool: Pool
runner.preflight: Outline
runner.result: Run
runner.run: Interrupted arun run stream
scoring.aggregators.aggregate: aggregate
scoring.aggregators.base: Candidate Decision
scoring.aggregators.llm: Integrate Synthesis
scoring.aggregators.voting: BestOfN Majority Weighted
scoring.filters: filters=
scoring.filters.base: Filter
scoring.metrics: metrics=
scoring.notes: Graded Verdict
scoring.reports.extractive: extract_report=extract
scoring.reports.reporter: Reporter
scoring.rewards: Choice F1 Maths Numeric Scored WeightedRewards contains exact_match numeric_match rewards= weighted
scoring.rewards.base: reward
scoring.rewards.code: Code
scoring.rewards.judge: Judge
store.datasets.loader: load_tasks
store.export.export: Exported export
store.reader: RunReader
store.stats.compare: compare
strategies.adaptive: Adaptive
strategies.base: Drop Fork Stop Strategy
strategies.chain: Chain
strategies.entropy_tree: EntropyTree
strategies.mcts: MCTS
strategies.partial: Partial
strategies.tree_grpo: TreeGRPO
strategies.tree_search: TreeSearch
team.builtin: ExpertsTeam MathTeam SearchTeam
team.projection: Boxed Projected Projection Tag Whole
team.role: Role
team.team: RoleReply Team TeamPlay
tools.calls: Call current_call
tools.environment: Environment
tools.tool: Tool tool
train: train=
tree.views: Node Trajectory Tree
types: Task Termination Usage
"""
"""Each module with its public names; ``name=other`` is called ``other`` there, ``name=`` is the module itself."""

_MODULES = {
    name: (f"trunkline.{module}", attribute if renamed else name)
    for module, names in (line.split(": ") for line in _HOMES.split("\n") if line)
    for name, renamed, attribute in (word.partition("=") for word in names.split())
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
    if name not in _MODULES:
        raise AttributeError(f"module 'trunkline' has no attribute {name!r}")
    module, attribute = _MODULES[name]
    value = importlib.import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
