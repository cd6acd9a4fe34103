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


class Claim(Protocol):
    """An amount that an account has reserved."""

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """Count the real cost, and the part of it that is estimated."""
        ...


class Reservation:
    """The reserved cost of one model turn."""

    def __init__(self, claims: Sequence[Claim], most: Amounts, prices: Mapping[str, Price]) -> None:
        self.sent = False
        self._claims: Sequence[Claim] = claims
        self._most = most
        self._prices = prices

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """Count the turn's cost, once."""
        claims, self._claims = self._claims, ()
        for claim in claims:
            claim.settle(spent, estimated)

    def lose(self) -> None:
        """Count a turn that was sent and whose cost is unknown at the most it can be."""
        self.settle(self._most, self._most)

    def drop(self) -> None:
        """Release a turn that was not sent; one that was is settled by its sender."""
        if not self.sent:
            self.settle({})

    def pay(self, reply: Reply, draw: int) -> None:
        """Count a draw's share of a request; the prompt goes with the first draw."""
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
    """Settles the turns of one request as their replies come."""

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
        """Count a reply; it is priced when it settles, as its endpoint may be filled in later."""
        self._called(reply)
        self._asked |= reply.attempts > 0
        self._parts.extend((reply, draw) for draw in range(len(reply.choices)))

    def settled(self, place: int, outcome: Turn | RolloutError) -> None:
        """Settle a draw before its waiter is told, which then finds the ledger up to date."""
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
    """An account refuses a claim; the message is the ledger's."""


class OutOfBudget(Finished):
    """Ends a rollout whose budget is used up; ``reason`` is the ledger's."""

    def __init__(self, reason: str) -> None:
        super().__init__(Termination.CENSORED, None, reason)


class Account(Protocol):
    """Pays for turns, tool calls and rollouts."""

    @property
    def limits(self) -> Amounts:
        """Limits by currency."""
        ...

    async def claim(self, most: Mapping[str, int | None]) -> Claim:
        """Reserve the most that something can cost; raises ``BudgetDenied``."""
        ...


class LedgerAccount:
    """An account with a ledger of its own, which never waits."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.ledger = ledger
        self.estimated: Counter[str] = Counter()
        self._name = name

    @property
    def limits(self) -> Amounts:
        """Limits by currency."""
        return self.ledger.limits

    async def claim(self, most: Mapping[str, int | None]) -> Claim:
        """Reserve an amount; raises ``BudgetDenied``."""
        claim = self.now(most)
        if isinstance(claim, Refusal):
            raise self.denied(claim)
        return claim

    def settled(self) -> None:
        """Called after each settlement of a claim."""

    def denied(self, refusal: Refusal) -> BudgetDenied:
        """Return the error for a ledger's refusal."""
        return BudgetDenied(f"{self._name}: {format_refusal(refusal)}")

    def now(self, most: Mapping[str, int | None]) -> LedgerClaim | Refusal:
        """Reserve an amount, or return the ledger's refusal."""
        reservation = self.ledger.reserve(dict(most))
        return reservation if isinstance(reservation, Refusal) else LedgerClaim(self, reservation)


class LedgerClaim:
    """A reservation on a ledger."""

    def __init__(self, account: LedgerAccount, reservation: int) -> None:
        self._account = account
        self._reservation = reservation

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        """Count the real cost, and the part of it that is estimated."""
        self._account.ledger.settle(self._reservation, spent)
        self._account.estimated.update(estimated or {})
        self._account.settled()


class _RecordedClaim:
    """A claim of a rollout on the task's budget, whose cost is recorded in the tree."""

    def __init__(self, claim: Claim, task_budget: TaskBudget, rollout: int) -> None:
        self._claim = claim
        self._task_budget = task_budget
        self._rollout = rollout

    def settle(self, spent: Amounts, estimated: Amounts | None = None) -> None:
        self._claim.settle(spent, estimated)
        self._task_budget.spent(self._rollout, spent)


class BudgetSources(NamedTuple):
    """The budget of a task, the run's account, and prices by endpoint and by LLM."""

    task: Budget | None
    run: Account | None
    prices: Mapping[str, Price]
    of_llm: Mapping[str, Mapping[str, Price]] = {}


class TaskBudget:
    """Pays for one task in logical order: requests wait until no rollout moves, then are granted by rollout number."""

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
        """Answer pending budget requests in rollout order and release their rollouts; return whether there were any."""
        queue = sorted(self._queue.keys() & self._barrier.waiting)
        if not queue:
            return False
        assert self._own is not None
        served: dict[int, int] = {}
        denied: dict[int, str] = {}
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
        """Record what a rollout spent."""
        assert self._own is not None
        write(self._core, SpentMark(_of(amount, self._own.limits), rollout))

    @property
    def orders_turns(self) -> bool:
        """Whether turns are paid for in logical order, so that a rollout has one in flight at a time."""
        return bool(self._ordered & _OF_TURNS)

    async def turn(
        self, rollout: int, leaf: int, compiled: CompiledAgent, kept: int = 0, context: int | None = None
    ) -> Reservation:
        """Reserve the cost of a rollout's next turn; OutOfBudget if refused."""
        prompt = prompt_bound(self._core, leaf, compiled, context) + kept if self._limited & _BY_TOKENS else 0
        prices = self._of_llm.get(compiled.agent.llm, self._prices)
        most = turn_cost(prompt, compiled.agent.sampling.max_tokens, prices)
        claims = await self._claim(most, rollout if self._ordered & _OF_TURNS else None)
        return Reservation(claims, {name: amount for name, amount in most.items() if amount is not None}, prices)

    async def tools(self, rollout: int, n: int) -> None:
        """Pay for tool calls that are about to begin; OutOfBudget if refused."""
        if "tools" not in self._limited or not n:
            return
        await self._spend({"tools": n}, rollout if "tools" in self._ordered else None)

    async def paid(self, forks: Sequence[Fork], refuse: Callable[[str, int], None]) -> list[Fork]:
        """Return the forks that are paid for, the last with as many draws as are; none after the first refusal."""
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
        """Pay for new rollouts; return how many are paid for, and the refusal of the next."""
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
        """Reserve an amount with every account, or with none; ``rollout`` waits for its turn unless None."""
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
        """Repeat a grant or denial that was recorded before."""
        if refused is not None:
            raise BudgetDenied(refused)
        claim = own.now(most)
        # Others may have cost more than was set aside for them, since then.
        granted = own.now({}) if isinstance(claim, Refusal) else claim
        assert not isinstance(granted, Refusal)
        return granted

    def _cost_of_turn(self, turn: int) -> Counter[str]:
        facts = self._core.node(turn)
        prompt, generated = facts.prompt or 0, facts.generated or 0
        money = turn_cost(prompt, generated, self._prices)["micro_dollars"] or 0
        return Counter(calls=1, prompt=prompt, generated=generated, tokens=prompt + generated, micro_dollars=money)


T = TypeVar("T", int, int | None)


def _of(most: Mapping[str, T], limits: Amounts) -> dict[str, T]:
    return {name: amount for name, amount in most.items() if name in limits}
