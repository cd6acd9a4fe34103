"""Dry run; endpoint and budget checks."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._core import CoreTree
from trunkline._internal.text import describe_error, printable
from trunkline._internal.validation import short_repr
from trunkline.agent import BoundDialect, CompiledAgent
from trunkline.errors import ConfigError, RunFileError
from trunkline.llm.config import LLM
from trunkline.protocol.job import forks_inside, keys_of, region_of, tokens_of
from trunkline.rollout.budget import prompt_bound, turn_cost
from trunkline.rollout.external.config import External
from trunkline.rollout.external.process import AgentRunner
from trunkline.rollout.moves import write_prompt
from trunkline.store.sqlite import describe
from trunkline.store.stats.summary import TakenOver
from trunkline.tools.toolbox import Toolbox
from trunkline.tree.views import Tree
from trunkline.worker.outbox import settle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trunkline.agent import Agent
    from trunkline.llm.http.client import HttpLLM
    from trunkline.llm.token_ids.base import TokenMode
    from trunkline.llm.types import Reply
    from trunkline.protocol.job import Job
    from trunkline.rollout.budget import Budget
    from trunkline.store.schema import CallRow
    from trunkline.strategies.base import Strategy
    from trunkline.types import Task


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has not started. What is said to be the most is a bound: rollouts of a tree share turns.

    Attributes:
        tasks: How many there are, or may be taken until enough groups were kept.
        rollouts: The most that each task gets.
        formula: How that comes about, for people; safe to print.
        calls: The most model turns of all tasks: rollouts times the turns each may take.
        generated: The most tokens these turns may generate; None where a turn has no ``max_tokens``.
        workers: Worker processes; 0 for none but this one.
        out: The run file; None for a temporary one.
        settings: What the run file will say of the run; no key is in it. A seed of None is drawn when it starts.
        taken: What would be taken over of an earlier run, some of which ``rollouts`` may count; None without one.
        finished: Tasks that are done, and would not be run again, of a run that would be resumed; None for a new one.
    """

    tasks: int
    rollouts: int
    formula: str
    calls: int
    generated: int | None
    workers: int
    out: str | None
    settings: dict[str, Any]
    taken: TakenOver | None = None
    finished: int | None = None


def check_out(path: Path | None) -> None:
    """Refuse the path of a run file at which something exists."""
    if path is not None and os.path.lexists(path):
        raise RunFileError(f"{printable(str(path))} {describe(path)}: choose another --out, or remove it")


def formula_of(strategy: Strategy, rollouts: int) -> str:
    """Return a strategy's formula for people."""
    tell = getattr(strategy, "formula", None)
    if tell is None:
        return f"{rollouts}"
    try:
        return printable(str(tell()), 200)
    except Exception as problem:
        what = describe_error(problem)
        raise ConfigError(f"strategy {type(strategy).__name__} raised in formula(): {what}") from problem


def check(job: Job) -> None:
    """Check keys and token settings of all agents, and an agent's command, without a request."""
    if isinstance(job.program, External):
        command = job.program.command
        if command is not None:
            AgentRunner(command, keys_of(job.llms)).check()
        elif find_spec("openai") is None:
            raise ConfigError(
                "an agent that is a function gets a client of openai, which is not installed: pip install "
                "'trunkline[openai]'"
            )
    for llm in job.llms.values():
        if isinstance(llm, LLM):
            llm.key()
    for agent in job.askers:
        if (mode := tokens_of(job.llms[agent.llm])) is not None:
            _check_tokens(agent, mode)


def _asked(job: Job) -> list[tuple[Agent, LLM]]:
    """Return the agents that ask endpoints, each with its endpoint."""
    asked = [(agent, job.llms[agent.llm]) for agent in job.askers]
    return [(agent, llm) for agent, llm in asked if isinstance(llm, LLM)]


def _check_tokens(agent: Agent, mode: TokenMode) -> None:
    # Here, because a controller whose workers do the talking needs none of it.
    from trunkline.llm.token_ids.base import form_of  # noqa: PLC0415

    form_of(mode, agent.model, BoundDialect(agent.dialect, agent.tools, agent.sampling).sampling)
    if mode.tokenizer is not None:
        from trunkline.llm.token_ids.renderers import LocalRenderer  # noqa: PLC0415

        LocalRenderer(mode.tokenizer, mode.template)


async def ready(job: Job) -> list[CallRow]:
    """Probe endpoints for what the settings need; return the requests sent. ConfigError, EndpointError, LLMError."""
    check(job)
    sent: list[CallRow] = []
    for agent, llm in _asked(job):
        spent: list[Reply] = []
        mode, dialect = llm.tokens, BoundDialect(agent.dialect, agent.tools, agent.sampling)
        if mode is not None:
            await _exact(job, agent, llm, mode, dialect, spent)
        # Where prompts are sent as ids, the server takes nothing apart, and log-probs come for every token or none.
        if region_of(job.strategy) is not None and (mode is None or mode.api == "chat"):
            await _uncertain(job, agent, llm, dialect, spent)
        sent += (settle(msgspec.structs.replace(reply, llm=agent.llm, agent=agent.name)) for reply in spent)
    return sent


async def _exact(job: Job, agent: Agent, llm: LLM, mode: TokenMode, dialect: BoundDialect, spent: list[Reply]) -> None:
    # Here, because a controller whose workers do the talking needs none of it.
    from trunkline.llm.capabilities import needs, other_apis, probe, require  # noqa: PLC0415

    tools = bool(agent.tools) and dialect.native
    wanted = needs(mode, tools=tools, inside=forks_inside(job.strategy))
    prompt = None if mode.tokenizer is None else await _local_prompt(mode)
    for opened in _servers(llm):
        found = await probe(opened, agent.model, tuple(wanted), spent, prompt)
        others = other_apis(found, wanted)
        require(found, wanted, await probe(opened, agent.model, others) if others else None)


async def _local_prompt(mode: TokenMode) -> list[int]:
    """Token ids that the model has, where the server need not render any."""
    from trunkline.llm.capabilities import QUESTION  # noqa: PLC0415
    from trunkline.llm.token_ids.renderers import renderers  # noqa: PLC0415

    return await renderers(mode)("").render([{"role": "user", "content": QUESTION}])


async def _uncertain(job: Job, agent: Agent, llm: LLM, dialect: BoundDialect, spent: list[Reply]) -> None:
    """Probe the log-probabilities that the strategy needs, as the agent would ask for them."""
    from trunkline.llm.capabilities import QUESTION, find_regions, require_region  # noqa: PLC0415

    region = region_of(job.strategy)
    opening = dialect.opening(agent.system, [{"role": "user", "content": QUESTION}])
    tools = Toolbox(agent.tools).definitions() if dialect.native else b""
    for opened in _servers(llm):
        found = await find_regions(opened, agent.model, dialect.sampling, opening, tools, spent)
        require_region(found, region or "all", type(job.strategy).__name__)


def _servers(llm: LLM) -> list[partial[HttpLLM]]:
    """Return a function for each server of an endpoint that opens it alone."""
    return [partial(msgspec.structs.replace(llm, base_urls=(url,)).open) for url in llm.base_urls]


_GENERATING = ("generated", "tokens", "money")


def check_budgets(job: Job, tasks: Sequence[Task]) -> None:
    """Refuse a budget whose cost has no bound, or that pays for less than one task or one turn."""
    for name, budget in (("budget", job.budget), ("task_budget", job.task_budget)):
        if budget is not None:
            _bounded(name, budget, job)
            _rollouts(name, budget, job)
            _turn(name, budget, job, tasks)


def _bounded(name: str, budget: Budget, job: Job) -> None:
    limited = [field for field in _GENERATING if field in budget.given]
    for asker in job.askers if limited else ():
        if asker.sampling.max_tokens is None:
            whose = "" if asker is job.agent else f" of {short_repr(asker.name)}"
            raise ConfigError(
                f"{name} limits {limited[0]}, but nothing limits what a turn{whose} generates: "
                "set sampling.max_tokens (--max-tokens)"
            )
    if budget.money is not None and not job.prices:
        raise ConfigError(f"{name} limits money, but the LLM has no price: give it one, price=Price(...) (--price)")


def _rollouts(name: str, budget: Budget, job: Job) -> None:
    planned = job.strategy.rollouts()
    if budget.rollouts is not None and budget.rollouts < planned:
        formula = formula_of(job.strategy, planned)
        raise ConfigError(
            f"{name} allows {budget.rollouts} rollouts, but {type(job.strategy).__name__} makes {formula} of one task"
        )


def _turn(name: str, budget: Budget, job: Job, tasks: Sequence[Task]) -> None:
    turns = [_cheapest(job, asker, tasks) for asker in job.askers]
    for currency, limit in budget.limits.items():
        least, generated, most = min(turns, key=lambda turn: turn[2].get(currency) or 0)
        wanted = most.get(currency, 0)
        if wanted is None or wanted <= limit:
            continue
        turn = {
            "prompt": f"the shortest prompt may have {least} tokens, as many as its bytes and what a template adds",
            "generated": f"max_tokens is {generated}",
            "tokens": f"the shortest prompt may have {least} tokens and max_tokens is {generated}: {wanted} in all",
            "micro_dollars": f"a prompt of {least} tokens and {generated} generated ones may cost {wanted / 1e6:g}",
        }[currency]
        amount = f"{limit / 1e6:g} of money" if currency == "micro_dollars" else f"{limit} {currency}"
        raise ConfigError(f"{name} allows {amount}, which does not pay for one turn: {turn}")


def _cheapest(job: Job, asker: Agent, tasks: Sequence[Task]) -> tuple[int, int | None, dict[str, int | None]]:
    """Return prompt tokens, most generated tokens and cost of an agent's cheapest first turn."""
    compiled, generated = CompiledAgent(asker), asker.sampling.max_tokens
    least = min((_prompt(task, compiled) for task in tasks), default=0)
    return least, generated, turn_cost(least, generated, job.prices_of_llm[asker.llm])


def _prompt(task: Task, compiled: CompiledAgent) -> int:
    tree = Tree(task, CoreTree())
    end = write_prompt(tree, compiled.agent, compiled.dialect)
    return prompt_bound(tree.core, end, compiled)
