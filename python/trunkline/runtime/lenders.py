"""The lenders of a run: one for each of its LLMs, whose slots and rates are lent apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from trunkline.runtime.lender import Lender

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trunkline.runtime.wire import Ask, Draw, Refund, Return, ToWorker

__all__ = ["Lenders", "for_llm"]

M = TypeVar("M")


def for_llm(llm: str, message: M) -> M:
    """Return a message about slots or rates with the name of the LLM that it is about.

    Args:
        llm: The name.
        message: One of :mod:`trunkline.runtime.loans` that has such a field.
    """
    return msgspec.structs.replace(message, llm=llm) if llm else message  # type: ignore[type-var]


class Lenders:
    """Lends engines what the LLMs of a run are limited by; see :class:`Lender`.

    Args:
        llms: The LLMs by their names.
        workers: How many engines there are to be in other processes.
        send: Takes a seat and a message for it.
    """

    def __init__(self, llms: Mapping[str, object], workers: int, send: Callable[[int, ToWorker], None]) -> None:
        self._lenders = {name: Lender(llm, workers, _sender(name, send)) for name, llm in llms.items()}

    def held(self, seat: int) -> int:
        """How many requests of an engine may be in flight, at all LLMs."""
        return sum(lender.held(seat) for lender in self._lenders.values())

    def seat(self, seat: int) -> None:
        """Note that an engine is up."""
        for lender in self._lenders.values():
            lender.seat(seat)

    def take(self, seat: int, message: Ask | Return | Draw | Refund) -> None:
        """Take a message about slots or rates."""
        self._lenders[message.llm].take(seat, message)

    def lost(self, seat: int) -> None:
        """Take back what an engine held that is gone."""
        for lender in self._lenders.values():
            lender.lost(seat)

    def close(self) -> None:
        """Stop every timer."""
        for lender in self._lenders.values():
            lender.close()


def _sender(llm: str, send: Callable[[int, ToWorker], None]) -> Callable[[int, ToWorker], None]:
    return lambda seat, message: send(seat, for_llm(llm, message))
