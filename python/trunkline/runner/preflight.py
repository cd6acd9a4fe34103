"""Whether budgets can pay for anything at all: checked before the first request, with the arithmetic in the error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._core import Tree as Core
from trunkline.bounds import shown
from trunkline.errors import ConfigError
from trunkline.rollout.agent import Kit
from trunkline.rollout.budget import prompt_bound, turn_cost
from trunkline.rollout.opening import plant, prompt
from trunkline.tree.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.rollout.agent import Agent
    from trunkline.rollout.budget import Budget
    from trunkline.runtime.job import Job
    from trunkline.types import Task

__all__ = ["check_budgets"]

_GENERATING = ("generated", "tokens", "money")


def check_budgets(job: Job, tasks: Sequence[Task]) -> None:
    """Refuse a budget that nothing bounds the cost of, or that pays for less than one task or one turn.

    Args:
        job: The job.
        tasks: Its tasks.

    Raises:
        ConfigError: Naming the budget, what it lacks, and what to do.
    """
    for name, budget in (("budget", job.budget), ("task_budget", job.task_budget)):
        if budget is not None:
            _bounded(name, budget, job)
            _rollouts(name, budget, job)
            _turn(name, budget, job, tasks)


def _bounded(name: str, budget: Budget, job: Job) -> None:
    limited = [field for field in _GENERATING if field in budget.given]
    for asker in job.askers if limited else ():
        if asker.sampling.max_tokens is None:
            whose = "" if asker is job.agent else f" of {shown(asker.name)}"
            raise ConfigError(
                f"{name} limits {limited[0]}, but nothing limits what a turn{whose} generates: "
                "set sampling.max_tokens (--max-tokens)"
            )
    if budget.money is not None and not job.prices:
        raise ConfigError(f"{name} limits money, but the LLM has no price: give it one, price=Price(...) (--price)")


def _rollouts(name: str, budget: Budget, job: Job) -> None:
    planned = job.strategy.rollouts()
    if budget.rollouts is not None and budget.rollouts < planned:
        formula = getattr(job.strategy, "formula", lambda: str(planned))()
        raise ConfigError(
            f"{name} allows {budget.rollouts} rollouts, but {type(job.strategy).__name__} makes {formula} of one task"
        )


def _turn(name: str, budget: Budget, job: Job, tasks: Sequence[Task]) -> None:
    """Compare what is limited with the cheapest first turn."""
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
    """An agent's cheapest first turn: tokens of its prompt, the most it may generate, and what that costs."""
    kit, generated = Kit(asker), asker.sampling.max_tokens
    least = min((_prompt(task, kit) for task in tasks), default=0)
    return least, generated, turn_cost(least, generated, job.prices_of_llm[asker.llm])


def _prompt(task: Task, kit: Kit) -> int:
    tree = Tree(task, Core())
    plant(tree, kit.agent)
    return prompt_bound(tree.core, prompt(tree.core), kit)
