"""Budgets of tasks and runs, and the most that one turn can cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._core import ROOT, TURN
from trunkline._internal.validation import check_float, check_int, parse_amounts
from trunkline.errors import ConfigError
from trunkline.llm.pricing import Price, micros

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trunkline._core import CoreTree, NodeView, Refusal
    from trunkline.agent import CompiledAgent

Amounts = dict[str, int]
"""So much of each of the core's ``CURRENCIES``; what is left out is 0."""

_MILLION: Final = 1_000_000

_MOST: Final = 1e12
"""The most seconds or money that can be counted in millionths."""

_TEMPLATE: Final = 512
"""Tokens that a chat template adds beside what is said: a system prompt of its own, how tools are told of."""

_MESSAGE: Final = 32
"""Tokens that a chat template adds to a message."""

_WHOLE: Final = ("rollouts", "calls", "prompt", "generated", "tokens", "tools")


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a task, or a run, may spend. What is None has no limit.

    Whatever may cost something is checked before it is sent, at the most that it can cost.

    Attributes:
        rollouts: Rollouts that are started.
        calls: Model turns; one that came out of a cache costs nothing.
        prompt: Prompt tokens.
        generated: Generated tokens.
        tokens: Both together.
        tools: Tool calls.
        seconds: Wall time from the start of the task, or of the run; growing rollouts are cut then.
        money: In the currency of the price that the LLM was given.

    Raises:
        ConfigError: A field has a value it cannot have, or there is no limit at all.
    """

    rollouts: int | None = None
    calls: int | None = None
    prompt: int | None = None
    generated: int | None = None
    tokens: int | None = None
    tools: int | None = None
    seconds: float | None = None
    money: float | None = None

    def __post_init__(self) -> None:
        for name in _WHOLE:
            if getattr(self, name) is not None:
                check_int(f"Budget: {name}", getattr(self, name), 1, 2**63)
        for name in ("seconds", "money"):
            if getattr(self, name) is not None:
                check_float(f"Budget: {name}", getattr(self, name), 0, _MOST, above=True)
        if not self.given:
            raise ConfigError(f"Budget sets no limit; it may limit {', '.join(self.__struct_fields__)}")

    @property
    def given(self) -> dict[str, float]:
        """What is limited, by the names of the fields."""
        return {name: limit for name in self.__struct_fields__ if (limit := getattr(self, name)) is not None}

    @property
    def limits(self) -> Amounts:
        """Limits of a ledger, without the time, which cannot be reserved."""
        found = {name: int(limit) for name, limit in self.given.items() if name in _WHOLE}
        return found if self.money is None else found | {"micro_dollars": math.floor(self.money * _MILLION)}


def read_budget(text: str) -> Budget:
    """Read a budget from a command line: ``tokens=1e6,money=5``."""
    found = parse_amounts(
        text,
        Budget.__struct_fields__,
        what="budget",
        foreign="is nothing that a budget limits",
        write=f"tokens=1e6,money=5 ({', '.join(Budget.__struct_fields__)})",
    )
    # Written as 1e6, a whole number is a float.
    whole_ones = {name: int(limit) for name, limit in found.items() if name in _WHOLE and limit.is_integer()}
    return Budget(**found | whole_ones)  # type: ignore[arg-type]


def prompt_bound(core: CoreTree, leaf: int, compiled: CompiledAgent, context: int | None = None) -> int:
    """Return the most prompt tokens of the next turn: last usage reported on the path, plus the bytes since."""
    if context is not None:
        body = core.request_context(context, compiled.head, compiled.constant)
        return len(body) + body.count(b'"role":') * _MESSAGE + _TEMPLATE
    most, node = 0, leaf
    while node != ROOT:
        facts = core.node(node)
        if _measures(core, facts, compiled) and facts.prompt is not None and facts.generated is not None:
            return most + facts.prompt + facts.generated + _MESSAGE
        most += len(core.message(node)) + _MESSAGE
        node = facts.parent
    return most + len(compiled.head) + len(compiled.constant) + _TEMPLATE


def messages_bound(messages: Iterable[bytes]) -> int:
    """Return the most prompt tokens of messages."""
    return sum(len(message) + _MESSAGE for message in messages)


def _measures(core: CoreTree, facts: NodeView, compiled: CompiledAgent) -> bool:
    """Whether the usage reported for a node measures its path as this agent is sent it."""
    if facts.kind != TURN or facts.agent != compiled.agent.name:
        return False
    return facts.context is None or not core.has_messages(facts.context)


def turn_cost(prompt: int, generated: int | None, prices: Mapping[str, Price]) -> dict[str, int | None]:
    """Return the most that a model turn can cost, at the highest price; None where it has no limit."""
    most: dict[str, int | None] = {"calls": 1, "prompt": prompt, "generated": generated}
    most["tokens"] = most["micro_dollars"] = None
    if generated is not None:
        most["tokens"] = prompt + generated
        most["micro_dollars"] = max((micros(price, prompt, 0, generated) for price in _dearest(prices)), default=0)
    return most


def _dearest(prices: Mapping[str, Price]) -> list[Price]:
    """Return each price with no token cached and with all cached, which may cost more."""
    every = list(prices.values())
    return every + [
        Price(prompt=price.cached, generated=price.generated) for price in every if price.cached is not None
    ]


def format_refusal(refusal: Refusal) -> str:
    """Return a ledger's refusal as text, with money in units of the price."""
    if refusal.currency != "micro_dollars" or refusal.wanted is None:
        return str(refusal)
    wanted, left, limit = (amount / _MILLION for amount in (refusal.wanted, refusal.left, refusal.limit))
    return f"{wanted:g} money wanted, {left:g} left of {limit:g}"
