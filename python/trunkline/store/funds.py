"""What a run's budget came to, as its file has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BUDGET", "ESTIMATED", "Funds", "estimated", "funds"]

BUDGET: Final = "budget"
"""Key of the file's ``meta`` table under which it stands."""

ESTIMATED: Final = "estimated"
"""Key under which stands what nobody measured so far: it is in no row, and must outlive whoever counts it."""

_MILLION: Final = 1_000_000


class Funds(msgspec.Struct, frozen=True):
    """What a run's ledger said when the run was over. Money stands in millionths, as ``micro_dollars``.

    Attributes:
        limits: What was limited.
        spent: What was spent of it.
        estimated: The part of that which nobody measured: calls that were given up, that came without usage, or that a
            dead worker had in flight.
        overshoot: What things cost beyond what was set aside for them.
        refused: How often something was not paid for.
        closed: The ledger's words when that was so first.
    """

    limits: dict[str, int]
    spent: dict[str, int]
    estimated: dict[str, int]
    overshoot: dict[str, int]
    refused: int
    closed: str | None

    def lines(self) -> list[str]:
        """Each currency for people: ``calls 12 of 20``."""
        return [self._line(name, limit) for name, limit in self.limits.items()]

    def _line(self, name: str, limit: int) -> str:
        estimated = self.estimated.get(name, 0)
        beside = f" ({_amount(name, estimated)} estimated)" if estimated else ""
        word = "money" if name == "micro_dollars" else name
        return f"{word} {_amount(name, self.spent.get(name, 0))} of {_amount(name, limit)}{beside}"


def _amount(name: str, amount: int) -> str:
    return f"{amount / _MILLION:,g}" if name == "micro_dollars" else f"{amount:,}"


def funds(meta: Mapping[str, str]) -> Funds | None:
    """Read it from a run file's table ``meta``; None where there is none, or none that can be read."""
    try:
        return msgspec.json.decode(meta.get(BUDGET, ""), type=Funds)
    except msgspec.MsgspecError:
        return None


def estimated(meta: Mapping[str, str]) -> dict[str, int]:
    """Read from a run file's table ``meta`` what nobody measured so far; nothing where that cannot be read."""
    try:
        return msgspec.json.decode(meta.get(ESTIMATED, ""), type=dict[str, int])
    except msgspec.MsgspecError:
        return {}
