"""What controller and workers say about what is lent: the run's budget, its requests in flight and its rates.

Requests in flight and rates are those of one LLM each, whose name a message has last.
"""

from __future__ import annotations

from trunkline.runtime.message import Message

__all__ = [
    "Allot",
    "Amount",
    "Ask",
    "Denied",
    "Draw",
    "Drawn",
    "Grant",
    "Lent",
    "Recall",
    "Reclaim",
    "Refund",
    "Repaid",
    "Return",
    "Want",
]


class Want(Message):
    """Worker to controller: a lease is wanted, of so much at least; it is answered by ``Lent`` or ``Denied``."""

    least: dict[str, int]


class Lent(Message):
    """Controller to worker: a lease on the run's budget.

    Attributes:
        lease: Its number.
        limits: What may be spent of it.
    """

    lease: int
    limits: dict[str, int]


class Denied(Message):
    """Controller to worker: the budget has too little left for what a lease was wanted for; the ledger's words."""

    reason: str


class Recall(Message):
    """Controller to worker: give the lease at hand back as soon as nothing is in flight on it."""


class Drawn(Message):
    """Worker to controller: so much of a lease may be spent or reserved from here on."""

    lease: int
    most: dict[str, int]


class Repaid(Message):
    """Worker to controller: nothing more is spent of a lease; the calls it paid for are in earlier batches.

    Attributes:
        lease: Its number.
        spent: What was spent.
        estimated: The part of it that nobody measured.
    """

    lease: int
    spent: dict[str, int]
    estimated: dict[str, int]


class Ask(Message):
    """Worker to controller: how many slots it could use, those that it holds among them."""

    slots: list[int]
    llm: str = ""


class Grant(Message):
    """Controller to worker: so many slots more, of the run and then of each endpoint that has a limit of its own.

    A slot is a request that may be in flight.
    """

    slots: list[int]
    llm: str = ""


class Reclaim(Message):
    """Controller to worker: return so many slots as soon as they are free; others have less than their share."""

    slots: list[int]
    llm: str = ""


class Return(Message):
    """Worker to controller: slots that it holds no longer, because they were reclaimed or nobody needs them.

    Attributes:
        slots: How many.
        wishes: How many it could use now, as ``Ask`` says: a wish of long ago would bring them back.
    """

    slots: list[int]
    wishes: list[int]
    llm: str = ""


Amount = tuple[int, int]
"""So many requests, and so many tokens."""


class Draw(Message):
    """Worker to controller: requests and tokens are wanted out of the run's rates; it is answered by ``Allot``.

    Attributes:
        least: What the first request that waits lacks.
        most: What all that wait will come to.
    """

    least: Amount
    most: Amount
    llm: str = ""


class Allot(Message):
    """Controller to worker: so many requests and tokens may be sent."""

    requests: int
    tokens: int
    llm: str = ""


class Refund(Message):
    """Worker to controller: what was allotted and not used; below 0 for what replies took beyond it."""

    requests: int
    tokens: int
    llm: str = ""
