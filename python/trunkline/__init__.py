"""Trunkline runs LLM-agent rollouts: many questions, many tries each, many processes, on one tree per task.

What a first program needs is here; the rest is in ``strategies``, ``rewards``, ``aggregators``, ``teams``, ``llms``,
``tools``, ``programs``, ``filters``, ``metrics``, ``runs``, ``observability``, ``train`` and ``errors``. Each name is
imported from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline import errors, observability, strategies, tools, train
    from trunkline import llm as llms
    from trunkline import runner as runs
    from trunkline import team as teams
    from trunkline._core import __version__
    from trunkline.agent import Agent
    from trunkline.errors import RunFailed, ToolError, TrunklineError
    from trunkline.llm.batch.batcher import BatchLLM
    from trunkline.llm.config import LLM
    from trunkline.llm.request import Sampling
    from trunkline.llm.token_ids.base import TokenMode
    from trunkline.llm.types import Reply, Request
    from trunkline.observability.event_stream import events
    from trunkline.rollout import programs
    from trunkline.rollout.budget import Budget
    from trunkline.rollout.external.config import External
    from trunkline.rollout.external.verifiers import from_verifiers
    from trunkline.runner.amend import arescore, rescore
    from trunkline.runner.dynamic_sampling import asample_groups, sample_groups
    from trunkline.runner.plan import plan
    from trunkline.runner.pool import Pool
    from trunkline.runner.result import Run, open  # noqa: A004
    from trunkline.runner.run import arun, run, stream
    from trunkline.scoring import aggregators, filters, metrics, rewards
    from trunkline.scoring.aggregators.aggregate import aggregate
    from trunkline.scoring.rewards.base import reward
    from trunkline.scoring.rewards.matching import exact_match
    from trunkline.store.datasets.loader import load_tasks
    from trunkline.store.export.export import export
    from trunkline.store.reader import RunReader
    from trunkline.store.stats.compare import compare
    from trunkline.strategies.chain import Chain
    from trunkline.strategies.tree_grpo import TreeGRPO
    from trunkline.team.role import Role
    from trunkline.team.team import Team
    from trunkline.tools import environments
    from trunkline.tools.environment import Environment
    from trunkline.tools.environment_pool import EnvironmentPool
    from trunkline.tools.gym import from_gym
    from trunkline.tools.mcp.config import MCP
    from trunkline.tools.tool import tool
    from trunkline.tree.views import Node, Trajectory, Tree
    from trunkline.types import Task, Termination

_HOMES: Final = """
_core: __version__
agent: Agent
errors: RunFailed ToolError TrunklineError errors=
llm: llms=
llm.batch.batcher: BatchLLM
llm.config: LLM
llm.request: Sampling
llm.token_ids.base: TokenMode
llm.types: Reply Request
observability: observability=
observability.event_stream: events
rollout.budget: Budget
rollout.external.config: External
rollout.external.verifiers: from_verifiers
rollout.programs: programs=
runner: runs=
runner.amend: arescore rescore
runner.dynamic_sampling: asample_groups sample_groups
runner.plan: plan
runner.pool: Pool
runner.result: Run open
runner.run: arun run stream
scoring.aggregators: aggregators=
scoring.aggregators.aggregate: aggregate
scoring.filters: filters=
scoring.metrics: metrics=
scoring.rewards: rewards=
scoring.rewards.base: reward
scoring.rewards.matching: exact_match
store.datasets.loader: load_tasks
store.export.export: export
store.reader: RunReader
store.stats.compare: compare
strategies: strategies=
strategies.chain: Chain
strategies.tree_grpo: TreeGRPO
team: teams=
team.role: Role
team.team: Team
tools: tools=
tools.environment: Environment
tools.environment_pool: EnvironmentPool
tools.environments: environments=
tools.gym: from_gym
tools.mcp.config: MCP
tools.tool: tool
train: train=
tree.views: Node Trajectory Tree
types: Task Termination
"""

_RENAMED: Final = {
    "Adaptive": "strategies.Adaptive",
    "Answered": "programs.ModelTurn",
    "BestOfN": "aggregators.BestOfN",
    "Boxed": "teams.Boxed",
    "Call": "tools.Call",
    "Candidate": "aggregators.Candidate",
    "Choice": "rewards.Choice",
    "ClientLLM": "llms.ClientLLM",
    "Code": "rewards.Code",
    "Completion": "llms.Completion",
    "ContextMessage": "programs.ContextMessage",
    "Decision": "aggregators.Decision",
    "Dialect": "llms.Dialect",
    "Drop": "strategies.Drop",
    "EntropyTree": "strategies.EntropyTree",
    "ExpertsTeam": "teams.ExpertsTeam",
    "Exported": "runs.Exported",
    "F1": "rewards.F1",
    "Filter": "filters.Filter",
    "Fork": "strategies.Fork",
    "Graded": "rewards.Graded",
    "Hermes": "llms.Hermes",
    "Integrate": "aggregators.Integrate",
    "Interrupted": "runs.Interrupted",
    "Judge": "rewards.Judge",
    "Limits": "llms.Limits",
    "MCTS": "strategies.MCTS",
    "Majority": "aggregators.Majority",
    "MathTeam": "teams.MathTeam",
    "Maths": "rewards.Math",
    "Metrics": "observability.PrometheusServer",
    "ModelTurn": "programs.ModelTurn",
    "Noted": "programs.ContextMessage",
    "Numeric": "rewards.Numeric",
    "Options": "runs.Options",
    "Outline": "runs.Plan",
    "Parsed": "llms.Parsed",
    "Partial": "strategies.Partial",
    "Play": "programs.ProgramContext",
    "Price": "llms.Price",
    "ProgramContext": "programs.ProgramContext",
    "Projected": "teams.Reading",
    "Projection": "teams.Reader",
    "Prompt": "llms.Prompt",
    "Reporter": "aggregators.Reporter",
    "Rescored": "runs.Rescored",
    "RoleReply": "teams.RoleReply",
    "Routing": "llms.Routing",
    "Said": "teams.RoleReply",
    "SampledGroups": "runs.SampledGroups",
    "Scored": "rewards.Scored",
    "SearchR1": "llms.SearchR1",
    "SearchTeam": "teams.SearchTeam",
    "Snapshot": "observability.Progress",
    "Stop": "strategies.Stop",
    "Strategy": "strategies.Strategy",
    "Synthesis": "aggregators.Synthesis",
    "Tag": "teams.Tag",
    "TeamPlay": "teams.TeamPlay",
    "Tool": "tools.Tool",
    "ToolCall": "llms.ToolCall",
    "Tracing": "observability.Tracing",
    "TreeSearch": "strategies.TreeSearch",
    "Usage": "runs.Usage",
    "Verdict": "filters.Verdict",
    "WeightedVote": "aggregators.WeightedVote",
    "WeightedRewards": "rewards.WeightedRewards",
    "Whole": "teams.Whole",
    "contains": "rewards.contains",
    "current_call": "tools.current_call",
    "extract_report": "aggregators.extract_report",
    "log_to": "observability.log_to",
    "numeric_match": "rewards.numeric_match",
    "tokens_with": "llms.tokens_with",
    "weighted": "rewards.weighted",
}
"""Names of the time before 0.1.0, which lead on until 0.2."""

__all__ = [
    "LLM",
    "MCP",
    "Agent",
    "BatchLLM",
    "Budget",
    "Chain",
    "Environment",
    "EnvironmentPool",
    "External",
    "Node",
    "Pool",
    "Reply",
    "Request",
    "Role",
    "Run",
    "RunFailed",
    "RunReader",
    "Sampling",
    "Task",
    "Team",
    "Termination",
    "TokenMode",
    "ToolError",
    "Trajectory",
    "Tree",
    "TreeGRPO",
    "TrunklineError",
    "__version__",
    "aggregate",
    "aggregators",
    "arescore",
    "arun",
    "asample_groups",
    "compare",
    "environments",
    "errors",
    "events",
    "exact_match",
    "export",
    "filters",
    "from_gym",
    "from_verifiers",
    "llms",
    "load_tasks",
    "metrics",
    "observability",
    "open",
    "plan",
    "programs",
    "rescore",
    "reward",
    "rewards",
    "run",
    "runs",
    "sample_groups",
    "strategies",
    "stream",
    "teams",
    "tool",
    "tools",
    "train",
]

__getattr__ = exports(__name__, _HOMES, _RENAMED)
