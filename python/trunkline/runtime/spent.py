"""What a run has spent so far, as its file says: the ledger of a run that goes on begins with it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline._core import Tree as Core
from trunkline.llm.price import price_at
from trunkline.rollout.budget import Amounts, cost
from trunkline.store.derive import rows
from trunkline.store.funds import estimated
from trunkline.store.reader import RunReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from trunkline.llm.price import Price
    from trunkline.store.schema import CallRow, RolloutRow
    from trunkline.store.standing import Standing

__all__ = ["NOTHING", "Spent", "spent_in", "spent_so_far", "worth"]


class Spent(NamedTuple):
    """What was spent.

    Attributes:
        amounts: All of it.
        estimated: The part of it that nobody measured.
    """

    amounts: Amounts
    estimated: Amounts


NOTHING: Final = Spent({}, {})
"""What a run has spent that begins."""


def worth(call: CallRow, prices: Mapping[str, Price]) -> Amounts:
    """Return what a call in the file did cost; nothing if it came out of a cache."""
    if not call.attempts:
        return {}
    if not call.reported:
        return {"calls": max(1, call.draws)}
    price = price_at(prices, call.endpoint)
    cached = min(max(0, call.cached), call.prompt)
    return {
        "calls": max(1, call.draws),
        "prompt": call.prompt,
        "generated": call.generated,
        "tokens": call.prompt + call.generated,
        "micro_dollars": 0 if price is None else cost(price, call.prompt, cached, call.generated),
    }


def spent_in(path: Path, prices: Mapping[str, Price], standing: Standing) -> Spent:
    """Return what a run has spent that goes on in its file.

    Args:
        path: The file.
        prices: Prices by base URL.
        standing: What the file held when it was opened to go on.
    """
    taken = {task: row.rollouts for task, row in standing.taken.items()}
    with RunReader.open(path) as reader:
        grown = [pair for pair in reader.rollouts() if pair[0] not in standing.begun]
        for task in standing.begun:
            core = Core()
            for data in reader.deltas(task):
                core.apply(data)
            grown += [(task, row) for row in rows(core)[1]]
        own = (row for task, row in grown if row.rollout >= taken.get(task, 0))
        calls = (call for _, call in reader.calls())
        return spent_so_far(calls, own, prices, estimated(reader.meta), ended=standing.state != "running")


def spent_so_far(
    calls: Iterable[CallRow],
    rollouts: Iterable[RolloutRow],
    prices: Mapping[str, Price],
    noted: Mapping[str, int] | None = None,
    *,
    ended: bool,
) -> Spent:
    """Return what a run has spent, from the rows of its file.

    Args:
        calls: Its calls.
        rollouts: Its rollouts, those of unfinished trees among them; none that an earlier run had begun.
        prices: Prices by base URL.
        noted: What was noted in it of what nobody measured, which is in no row.
        ended: Whether it did so the last time. Where it did not, each rollout that still grows may have had a turn in
            flight: it is charged a call like the others, as an estimate.
    """
    amounts: Counter[str] = Counter()
    guessed = Counter(noted or {})
    for call in calls:
        amounts.update(worth(call, prices))
    growing = 0
    for row in rollouts:
        amounts.update(rollouts=1, tools=row.tools)
        growing += row.termination is None
    if not ended:
        number = max(1, amounts["calls"])
        usual = {name: -(-amounts[name] // number) for name in ("prompt", "generated", "tokens", "micro_dollars")}
        guessed.update({name: growing * each for name, each in ({"calls": 1} | usual).items()})
    return Spent(dict(amounts + guessed), dict(+guessed))
