"""Where names of earlier releases are now: run files and command lines hold names of ours for one release.

Each line has a module, and behind it the modules that went into it, or the names that have another name there. Only
modules and names that a run file or a command line can hold are here.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from trunkline._internal.frames import warn_user

_MODULES = """
agent: rollout.agent rollout.speech
compat: compat.parallel_rollout
compat.aggregate: compat.parallel_rollout.aggregate compat.parallel_rollout.node
compat.rollouts: compat.parallel_rollout.conversation compat.parallel_rollout.options compat.parallel_rollout.results
    compat.parallel_rollout.rollouts compat.parallel_rollout.tools
llm.batch.batcher: llm.batch llm.batcher llm.queues
llm.batch.completion: llm.completion llm.prompt
llm.config: llm.spec
llm.dialects.base: llm.dialects.calls llm.dialects.dialect llm.dialects.thinking
llm.dialects.builtin: llm.dialects.catalog llm.dialects.hermes llm.dialects.native llm.dialects.search_r1
llm.openai_client: llm.client
llm.pricing: llm.names llm.price
llm.response: llm.recorded llm.reply
llm.token_ids: llm.renderer
llm.token_ids.base: llm.renderer.protocol llm.renderer.suffix llm.tokens
llm.token_ids.renderers: llm.renderer.choose llm.renderer.local llm.renderer.server llm.renderer.template
llm.types: llm.limits llm.protocol
rollout.drivers: rollout.loop
rollout.programs.context: rollout.play rollout.said
rollout.programs.replay: rollout.journal rollout.replay rollout.standing rollout.ticks
rollout.programs.resources: rollout.program
scoring: score
scoring.aggregators: score.aggregators
scoring.aggregators.aggregate: score.aggregators.aggregate score.aggregators.catalog
scoring.aggregators.base: score.aggregators.aggregator
scoring.aggregators.llm: score.aggregators.integrate score.aggregators.picking score.aggregators.prompts
    score.aggregators.synthesis
scoring.aggregators.voting: score.aggregators.ballot score.aggregators.clusters score.aggregators.votes
scoring.answers: score.actions score.answers
scoring.confidence: score.confidence
scoring.diversity: score.diversity
scoring.filters: score.filters score.filters.catalog
scoring.filters.base: score.filters.filter score.filters.group score.filters.options
scoring.filters.builtin: score.filters.overlong score.filters.prefix score.filters.presets score.filters.repetition
    score.filters.variance score.filters.void
scoring.metrics: score.metrics
scoring.metrics.at_k: score.metrics.naming score.metrics.passing score.metrics.shares score.metrics.solving
    score.metrics.voting
scoring.metrics.comparison: score.metrics.pairing score.metrics.reliability
scoring.metrics.intervals: score.metrics.averages score.metrics.estimate score.metrics.interval
scoring.model_client: score.asking
scoring.notes: score.notes score.replays score.verdicts
scoring.reports: score.reports
scoring.reports.extractive: score.reports.extract score.reports.outcome
scoring.reports.reporter: score.reports.prompts score.reports.reporter
scoring.rewards: score.rewards score.rewards.catalog
scoring.rewards.base: score.rewards.naming score.rewards.policy score.rewards.reward score.values
scoring.rewards.code: score.rewards.code score.rewards.code.cases score.rewards.code.code
scoring.rewards.grading: score.rewards.calling score.rewards.grading score.rewards.weighting
scoring.rewards.judge: score.rewards.judge score.rewards.judge.grades score.rewards.judge.judge
    score.rewards.judge.prompt
scoring.rewards.matching: score.rewards.choice score.rewards.f1 score.rewards.matching
scoring.rewards.maths: score.rewards.equality score.rewards.maths
strategies: rollout.strategies rollout.strategies.catalog
strategies.adaptive: rollout.strategies.adaptive
strategies.base: rollout.strategy rollout.view
strategies.chain: rollout.strategies.chain
strategies.entropy_tree: rollout.strategies.entropy_tree
strategies.mcts: rollout.strategies.mcts
strategies.partial: rollout.branching rollout.strategies.partial
strategies.stopping: rollout.stopping
strategies.tree_grpo: rollout.strategies.tree_grpo
strategies.tree_search: rollout.strategies.tree_search
team: team.programs.catalog
team.builtin: team.programs team.programs.experts team.programs.math team.programs.search team.programs.verdict
team.role: team.template
team.team: team.change team.play
tools.calls: tools.call tools.result tools.syntax
tools.isolation: tools.sandbox
tools.openai_definition: tools.defined
tools.tool: tools.policy
train.rows: train.table
train.selection: train.calls train.records
"""

_NAMES = """
llm.batch.completion: llm.completion:Taken=RequestTime
llm.config: llm.config:EndpointSpec=LLM llm.spec:EndpointSpec=LLM
llm.token_ids.renderers: llm.renderer.template:Template=ChatTemplate
llm.types: llm.protocol:Choice=ReplyChoice
rollout.drivers: rollout.program:ProgramFunction=ProgramFunction
rollout.programs.context: rollout.play:Play=ProgramContext rollout.said:Answered=ModelTurn
    rollout.said:Noted=ContextMessage
rollout.programs.state: rollout.standing:Standing=ReplayState
scoring.aggregators.voting: score.aggregators.votes:Weighted=WeightedVote
    scoring.aggregators.voting:Weighted=WeightedVote
scoring.model_client: score.asking:Asked=ModelReply
scoring.rewards: score.rewards:Part=RewardPart
scoring.rewards.base: score.rewards.policy:Policy=RewardPolicy score.rewards.reward:Part=RewardPart
scoring.rewards.maths: score.rewards.maths:Maths=Math scoring.rewards.maths:Maths=Math
strategies.base: rollout.opening:prompt=prompt rollout.rounds:was_to_move=was_to_move
team.builtin: team.programs.verdict:said_yes=is_yes
team.projection: team.projection:Projected=Reading team.projection:Projection=Reader
team.team: team.play:Said=RoleReply
tools.openai_definition: tools.defined:Defined=DefinedTool
"""


@cache
def _tables() -> tuple[dict[str, str], dict[str, str]]:
    """The module of each old module, and ``module:name`` of each old one that is called otherwise."""
    modules: dict[str, str] = {}
    names: dict[str, str] = {}
    for table, found in ((_MODULES, modules), (_NAMES, names)):
        module = ""
        for word in table.split():
            if word.endswith(":"):
                module = word[:-1]
            else:
                old, _, name = word.partition("=")
                found[old] = f"{module}:{name}" if name else module
    return modules, names


def current_name(module: str, qualname: str = "") -> tuple[str, str]:
    """Return where an object is now that an earlier release knew by this name."""
    package, _, inside = module.partition(".")
    if package != "trunkline":
        return module, qualname
    modules, names = _tables()
    first, dot, rest = qualname.partition(".")
    if (found := names.get(f"{inside}:{first}")) is not None:
        home, _, name = found.partition(":")
        return f"trunkline.{home}", name + dot + rest
    return (f"trunkline.{modules[inside]}" if inside in modules else module), qualname


def words_now(text: str) -> str:
    """Return a description of a reward with the classes of earlier releases as they are called now."""
    known = {
        old.partition(":")[2]: new.partition(":")[2]
        for old, new in _tables()[1].items()
        if new.startswith(("scoring.rewards", "llm.config"))
    }
    return re.sub(r"\w+", lambda word: known.get(word[0], word[0]), text)


def renamed(name: str) -> str:
    """Return a name of the form ``module:qualname`` as it is now; any other text stays."""
    module, colon, qualname = name.partition(":")
    return ":".join(current_name(module, qualname)) if colon else name


def earlier_names(name: str) -> list[str]:
    """Return each name that an earlier release can have had for a ``module:qualname`` of now."""
    module, _, qualname = name.partition(":")
    package, _, inside = module.partition(".")
    if package != "trunkline":
        return []
    modules, names = _tables()
    first, dot, rest = qualname.partition(".")
    found = [old + dot + rest for old, new in names.items() if new == f"{inside}:{first}"]
    found += [f"{old}:{qualname}" for old, new in modules.items() if new == inside]
    return [f"trunkline.{one}" for one in found]


def old_method(old: str, new: str) -> property:
    """Return an attribute that leads from the old name of a public method to its new one, with a warning."""

    def lead(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old} is called {new} now")
        return getattr(self, new)

    return property(lead)


def warn_renamed(text: str) -> None:
    """Warn of an old name at the line of the caller's own that uses it."""
    warn_user(text, DeprecationWarning)
