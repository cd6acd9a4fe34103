"""Reserve and settle turns."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeVar

import msgspec

from trunkline._core import Ledger, Refusal
from trunkline.llm.pricing import cost_of_call, named
from trunkline.rollout.budget import format_refusal, prompt_bound, turn_cost
from trunkline.rollout.checkpoint import ServedMark, SpentMark, write
from trunkline.rollout.types import Finished
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trunkline._core import CoreTree
    from trunkline.agent import CompiledAgent
    from trunkline.errors import RolloutError
    from trunkline.llm.pricing import Price
    from trunkline.llm.types import Reply
    from trunkline.rollout.budget import Amounts, Budget
    from trunkline.rollout.checkpoint import Checkpoint
    from trunkline.rollout.growth import Barrier
    from trunkline.rollout.types import DrawCallback, Turn
    from trunkline.strategies.base import Fork


__all__ = [
    "Account",
    "BudgetDenied",
    "BudgetSources",
    "Claim",
    "LedgerAccount",
    "Meter",
    "OutOfBudget",
    "Reservation",
    "TaskBudget",
]


class Claim(Protocol):
    """Something that an account has set aside."""

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """Count what it did cost, and the part of that which nobody measured."""
        ...


class Reservation:
    """What was set aside for one model turn.

    Args:
        claims: What holds it.
        most: How much.
        prices: Prices by base URL.
    """

    def __init__(self, claims: Sequence[Claim], most: Amounts, prices: Mapping[str, Price]) -> None:
        self.sent = False
        self._claims: Sequence[Claim] = claims
        self._most = most
        self._prices = prices

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """Count what the turn did cost, once."""
        claims, self._claims = self._claims, ()
        for claim in claims:
            claim.settle(spent, estimated)

    def lose(self) -> None:
        """The turn was sent and nobody knows what it did cost: as much as it can have."""
        self.settle(self._most, self._most)

    def drop(self) -> None:
        """The turn does not happen; if it was sent, whoever sent it settles."""
        if not self.sent:
            self.settle({})

    def pay(self, reply: Reply, draw: int) -> None:
        """Count the turn's part of what a request did cost.

        Args:
            reply: What the request brought.
            draw: Which of its choices it is; the prompt goes with the first.
        """
        if not reply.attempts:
            self.settle({})
        elif reply.prompt < 0 or reply.generated < 0:
            # It was answered, but without usage.
            self.settle(self._most, {name: amount for name, amount in self._most.items() if name != "calls"})
        else:
            self.settle(self._share_of_call(reply, draw))

    def _share_of_call(self, reply: Reply, draw: int) -> Amounts:
        n = len(reply.choices)
        generated = reply.generated * (draw + 1) // n - reply.generated * draw // n
        prompt = reply.prompt if draw == 0 else 0
        money = cost_of_call(self._prices, named(reply.llm, reply.endpoint), prompt, reply.cached, generated)
        parts = {"prompt": prompt, "generated": generated, "tokens": prompt + generated, "micro_dollars": money}
        return {"calls": 1} | parts


class Meter:
    """Settles the turns of one request as they come.

    Args:
        reservations: What was set aside for each draw.
        called: Told of each reply.
        told: Told of each draw what became of it.
    """

    def __init__(
        self, reservations: Sequence[Reservation], called: Callable[[Reply], None], told: DrawCallback | None
    ) -> None:
        self._reservations = reservations
        self._called = called
        self._told = told
        self._parts: deque[tuple[Reply, int]] = deque()
        self._asked = False
        self._open = set(range(len(reservations)))
        for reservation in reservations:
            reservation.sent = True

    def called(self, reply: Reply) -> None:
        """Note what a request brought. Who answered may be filled in later, so it is priced when it settles."""
        self._called(reply)
        self._asked |= reply.attempts > 0
        self._parts.extend((reply, draw) for draw in range(len(reply.choices)))

    def settled(self, place: int, outcome: Turn | RolloutError) -> None:
        """Settle a draw, and then tell whoever waits for it: who comes next finds the ledger up to date."""
        if place in self._open:
            self._open.discard(place)
            if self._parts:
                self._reservations[place].pay(*self._parts.popleft())
            else:
                # One that failed for good was a call, if it was sent, and brought no tokens.
                self._reservations[place].settle({"calls": int(self._asked)})
        if self._told is not None:
            self._told(place, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What was given up in the middle.
        for place in sorted(self._open):
            if self._parts:
                self._reservations[place].pay(*self._parts.popleft())
            else:
                self._reservations[place].lose()


_OF_TURNS = frozenset({"calls", "prompt", "generated", "tokens", "micro_dollars"})
_BY_TOKENS = _OF_TURNS - {"calls"}


class BudgetDenied(Exception):
    """An account does not pay; the message is the ledger's."""


class OutOfBudget(Finished):
    """Ends a rollout that nobody pays for any more.

    Args:
        reason: What the ledger says.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(Termination.CENSORED, None, reason)


class Account(Protocol):
    """What pays."""

    @property
    def limits(self) -> Amounts:
        """The limits of the currencies that have one."""
        ...

    async def claim(self, most: Mapping[str, int | None]) -> Claim:
        """Set aside the most that something can cost; raises :class:`BudgetDenied`."""
        ...


class LedgerAccount:
    """An account with a ledger of its own. It never waits.

    Args:
        name: What its budget is called.
        ledger: The ledger.

    Attributes:
        ledger: The same.
        estimated: The part of what was spent that nobody measured.
    """

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.ledger = ledger
        self.estimated: Counter[str] = Counter()
        self._name = name

    @property
    def limits(self) -> Amounts:
        """See :class:`Account`."""
        return self.ledger.limits

    async def claim(self, most: Mapping[str, int | None]) -> Claim:
        """See :class:`Account`."""
        claim = self.now(most)
        if isinstance(claim, Refusal):
            raise self.denied(claim)
        return claim

    def denied(self, refusal: Refusal) -> BudgetDenied:
        """Say what the ledger says."""
        return BudgetDenied(f"{self._name}: {format_refusal(refusal)}")

    def now(self, most: Mapping[str, int | None]) -> LedgerClaim | Refusal:
        """Set aside what something can cost, or return why not."""
        reservation = self.ledger.reserve(dict(most))
        return reservation if isinstance(reservation, Refusal) else LedgerClaim(self, reservation)


class LedgerClaim:
    """A reservation on a ledger."""

    def __init__(self, account: LedgerAccount, reservation: int) -> None:
        self._account = account
        self._reservation = reservation

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """See :class:`~trunkline.rollout.task_budget.Claim`."""
        self._account.ledger.settle(self._reservation, spent)
        self._account.estimated.update(estimated or {})


class _RecordedClaim:
    """A claim of a rollout on the task's budget, which the tree is told of when it is settled."""

    def __init__(self, claim: Claim, task_budget: TaskBudget, rollout: int) -> None:
        self._claim = claim
        self._task_budget = task_budget
        self._rollout = rollout

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """See :class:`~trunkline.rollout.task_budget.Claim`."""
        self._claim.settle(spent, estimated)
        self._task_budget.spent(self._rollout, spent)


class BudgetSources(NamedTuple):
    """What pays for a task.

    Attributes:
        task: The task's budget.
        run: The run's account.
        prices: Prices by what endpoints are called on record.
        of_llm: The same of each LLM alone, by its name; one that is not in it has all of them.
    """

    task: Budget | None
    run: Account | None
    prices: Mapping[str, Price]
    of_llm: Mapping[str, Mapping[str, Price]] = {}


class TaskBudget:
    """Pays for one task.

    A task with a budget of its own is paid for in logical order: whoever wants to spend what it limits waits until
    nobody of the task moves, and then all are served by the numbers of their rollouts. So what is refused does not
    depend on who was faster. Who was served and what it came to is marked in the tree: whoever goes on with it has the
    same ledger, and who was paid for and had no answer yet is paid for.

    Args:
        sources: What pays.
        core: The task's tree.
        barrier: Where its rollouts wait.
        checkpoint: What was decided before, where this goes on with a tree.
        started: How many rollouts were paid for before.
    """

    def __init__(
        self,
        sources: BudgetSources,
        core: CoreTree,
        barrier: Barrier,
        checkpoint: Checkpoint | None = None,
        started: int = 0,
    ) -> None:
        self._prices = sources.prices
        self._of_llm = sources.of_llm
        self._core = core
        self._barrier = barrier
        self._queue: dict[int, Mapping[str, int | None]] = {}
        self._granted: dict[int, Claim | Refusal] = {}
        self._decided = {} if checkpoint is None else checkpoint.decided
        self._own: LedgerAccount | None = None
        if sources.task is not None and (limits := sources.task.limits):
            spent = Counter(rollouts=started)
            if checkpoint is not None:
                for rollout, turn in checkpoint.unsettled.items():
                    checkpoint.settle(rollout, _of(self._cost_of_turn(turn), limits))
                spent += checkpoint.spent
            self._own = LedgerAccount("task budget", Ledger(limits, _of(spent, limits)))
        self._run = sources.run
        self._ordered = frozenset() if self._own is None else frozenset(self._own.limits)
        self._limited = self._ordered | frozenset(() if self._run is None else self._run.limits)

    def admit(self) -> bool:
        """Serve those who wait to spend, in logical order, and let them go on once all are served.

        Nobody else of the task moves. Returns whether there were any.
        """
        queue = sorted(self._queue.keys() & self._barrier.waiting)
        if not queue:
            return False
        assert self._own is not None
        served, denied = dict[int, int](), dict[int, str]()
        for rollout in queue:
            granted = self._granted[rollout] = self._own.now(self._queue.pop(rollout))
            if isinstance(granted, Refusal):
                denied[rollout] = str(self._own.denied(granted))
            else:
                served[rollout] = self._core.rollout(rollout).leaf
        write(self._core, ServedMark(served, denied))
        for rollout in queue:
            self._barrier.go(rollout)
        return True

    def spent(self, rollout: int, amount: Amounts) -> None:
        """Note what something did cost that a rollout did."""
        assert self._own is not None
        write(self._core, SpentMark(_of(amount, self._own.limits), rollout))

    @property
    def orders_turns(self) -> bool:
        """Whether turns are paid for in logical order, so that a rollout can have one on its way at a time."""
        return bool(self._ordered & _OF_TURNS)

    async def turn(
        self, rollout: int, leaf: int, compiled: CompiledAgent, kept: int = 0, context: int | None = None
    ) -> Reservation:
        """Set aside what a rollout's next turn can cost.

        Args:
            rollout: Its id.
            leaf: Where it stands.
            compiled: Who is asked.
            kept: Tokens of an earlier turn that it goes on from; they are part of the prompt.
            context: What is sent instead of the path to where it stands; None where it is that path.

        Raises:
            OutOfBudget: Nobody pays.
        """
        prompt = prompt_bound(self._core, leaf, compiled, context) + kept if self._limited & _BY_TOKENS else 0
        prices = self._of_llm.get(compiled.agent.llm, self._prices)
        most = turn_cost(prompt, compiled.agent.sampling.max_tokens, prices)
        claims = await self._claim(most, rollout if self._ordered & _OF_TURNS else None)
        return Reservation(claims, {name: amount for name, amount in most.items() if amount is not None}, prices)

    async def tools(self, rollout: int, n: int) -> None:
        """Pay for tool calls, which have begun once this returns.

        Args:
            rollout: The rollout that makes them.
            n: How many.

        Raises:
            OutOfBudget: Nobody pays.
        """
        if "tools" not in self._limited or not n:
            return
        await self._spend({"tools": n}, rollout if "tools" in self._ordered else None)

    async def paid(self, forks: Sequence[Fork], refuse: Callable[[str, int], None]) -> list[Fork]:
        """Pay for forks; after the first refusal there are none.

        Args:
            forks: The forks.
            refuse: Told why, and of how many rollouts, where not all are paid for.

        Returns:
            Those that are paid for, with as many draws as are.
        """
        paid: list[Fork] = []
        for place, fork in enumerate(forks):
            n, why = await self.open(fork.n)
            if n:
                paid.append(msgspec.structs.replace(fork, n=n))
            if n < fork.n:
                refuse(why, sum(fork.n for fork in forks[place:]) - n)
                break
        return paid

    async def open(self, n: int) -> tuple[int, str]:
        """Pay for rollouts that are to start.

        Args:
            n: How many.

        Returns:
            How many may, and why not all.
        """
        for started in range(n if "rollouts" in self._limited else 0):
            try:
                await self._spend({"rollouts": 1})
            except OutOfBudget as problem:
                return started, problem.reason
        return n, ""

    async def _spend(self, amount: Amounts, rollout: int | None = None) -> None:
        for claim in await self._claim(amount, rollout):
            claim.settle(amount)

    async def _claim(self, most: Mapping[str, int | None], rollout: int | None) -> list[Claim]:
        """Have every account set something aside, or none.

        Args:
            most: How much.
            rollout: Who waits for its turn; None where the order makes no difference.
        """
        claims: list[Claim] = []
        try:
            if self._own is not None:
                claims.append(await self._mine(self._own, _of(most, self._own.limits), rollout))
            if self._run is not None:
                claims.append(await self._run.claim(_of(most, self._run.limits)))
        except BaseException as problem:
            for claim in claims:
                claim.settle({})
            if isinstance(problem, BudgetDenied):
                raise OutOfBudget(str(problem)) from None
            raise
        return claims

    async def _mine(self, own: LedgerAccount, most: Mapping[str, int | None], rollout: int | None) -> Claim:
        """Claim something of the task's own budget."""
        if rollout is None:
            return await own.claim(most)
        if rollout in self._decided:
            return _RecordedClaim(self._again(own, most, self._decided.pop(rollout)), self, rollout)
        self._queue[rollout] = most
        try:
            await self._barrier.wait(rollout)
        except BaseException:
            self._queue.pop(rollout, None)
            given = self._granted.pop(rollout, None)
            if given is not None and not isinstance(given, Refusal):
                given.settle({})
            raise
        granted = self._granted.pop(rollout)
        if isinstance(granted, Refusal):
            raise own.denied(granted)
        return _RecordedClaim(granted, self, rollout)

    def _again(self, own: LedgerAccount, most: Mapping[str, int | None], refused: str | None) -> Claim:
        """Claim what was granted before, or be denied what was denied."""
        if refused is not None:
            raise BudgetDenied(refused)
        claim = own.now(most)
        # Others may have cost more than was set aside for them, since then.
        granted = own.now({}) if isinstance(claim, Refusal) else claim
        assert not isinstance(granted, Refusal)
        return granted

    def _cost_of_turn(self, turn: int) -> Counter[str]:
        """What a model turn did cost, as far as the tree says."""
        facts = self._core.node(turn)
        prompt, generated = facts.prompt or 0, facts.generated or 0
        money = turn_cost(prompt, generated, self._prices)["micro_dollars"] or 0
        return Counter(calls=1, prompt=prompt, generated=generated, tokens=prompt + generated, micro_dollars=money)


T = TypeVar("T", int, int | None)


def _of(most: Mapping[str, T], limits: Amounts) -> dict[str, T]:
    """The part of an amount that is limited."""
    return {name: amount for name, amount in most.items() if name in limits}
