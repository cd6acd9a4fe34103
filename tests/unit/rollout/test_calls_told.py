"""A reply is told of in the step that puts its turns on the tree: nothing can come between a turn and its call."""

from __future__ import annotations

import asyncio

import pytest
from draws_table import ANSWER, Table, ask_all, completion, open_table

from trunkline.errors import ContentFiltered, EndpointError, LLMError, RolloutError
from trunkline.llm.request import Sampling
from trunkline.llm.types import Reply, Request


def turns(table: Table) -> int:
    """Model turns on a tree."""
    return sum(table.core.rollout(number).usage[0] for number in range(table.core.rollouts))


def told(table: Table) -> int:
    """Draws of the replies that were told of."""
    return sum(len(reply.choices) for reply in table.sink.replies)


class Gated:
    """An LLM whose draws are answered when somebody says so; it gives its name as a server's client does."""

    siblings = False

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []
        self.problem: Exception | None = None

    async def complete(self, request: Request) -> Reply:
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        if self.problem is not None:
            raise self.problem
        assert request.take is not None
        reply = request.take(completion(["x"]), 0, 1, 5)
        reply.endpoint, reply.queue = "http://h/v1", 7
        return reply

    async def close(self) -> None: ...


async def test_a_draw_is_told_of_while_its_siblings_are_still_out():
    llm = Gated()
    table = open_table(llm, 3)
    asking = asyncio.ensure_future(ask_all(table))
    while len(llm.gates) < 3:
        await asyncio.sleep(0)
    for done, gate in enumerate(reversed(llm.gates), 1):
        gate.set()
        while turns(table) < done:
            assert told(table) == turns(table), "in every step of the loop"
            await asyncio.sleep(0)
        assert told(table) == turns(table) == done
        assert [(reply.endpoint, reply.queue) for reply in table.sink.replies] == [("http://h/v1", 7)] * done
    await asking


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_paid_before_an_end_is_told(cancelled: bool):
    llm = Gated()
    table = open_table(llm, 3)
    asking = asyncio.ensure_future(ask_all(table))
    while len(llm.gates) < 3:
        await asyncio.sleep(0)
    llm.gates[0].set()
    while turns(table) < 1:
        await asyncio.sleep(0)
    if cancelled:
        asking.cancel()
    else:
        llm.problem = EndpointError("no such key")
        llm.gates[1].set()
    with pytest.raises(BaseException):  # noqa: B017, PT011 - a group, or the cancellation
        await asking
    assert told(table) == turns(table) == 1


class Own:
    """An LLM of somebody's that makes its replies itself, and does not say who answered."""

    async def complete(self, request: Request) -> Reply:
        return Reply([ANSWER], 90, -1, 10, 1, 5)

    async def close(self) -> None: ...


async def test_a_reply_without_an_endpoint_is_named_after_its_class():
    table = open_table(Own(), 2)
    await ask_all(table)
    assert [reply.endpoint for reply in table.sink.replies] == ["Own", "Own"]


async def test_equal_draws_are_told_of_one_by_one_and_one_was_sent():
    table = open_table(Own(), 3, sampling=Sampling(temperature=0))
    await ask_all(table)
    assert [(reply.endpoint, reply.attempts) for reply in table.sink.replies] == [("Own", 1), ("Own", 0), ("Own", 0)]
    assert told(table) == turns(table) == 3


class Broken(LLMError):
    """An error of somebody's own, made in its own way."""

    def __init__(self, code: int, *, hint: str) -> None:
        Exception.__init__(self, f"{code}: {hint}")


class Failing:
    """An LLM that fails in another way for each request."""

    def __init__(self, *errors: RolloutError, siblings: bool = False) -> None:
        self.errors = list(errors)
        self.siblings = siblings

    async def complete(self, request: Request) -> Reply:
        await asyncio.sleep(0)
        raise self.errors.pop(0)

    async def close(self) -> None: ...


async def outcomes(table: Table) -> list[BaseException]:
    found = await asyncio.gather(*(rollout.ask(table.compiled) for rollout in table.rollouts), return_exceptions=True)
    assert all(isinstance(error, RolloutError) for error in found)
    return found


async def test_draws_that_fail_each_for_itself_keep_their_own_reasons():
    errors = LLMError("late", attempts=6, endpoint="http://h/v1"), ContentFiltered("no"), Broken(7, hint="odd")
    table = open_table(Failing(*errors), 3)
    found = await outcomes(table)
    assert [(type(error), str(error), error.attempts) for error in found] == [
        (LLMError, "late", 6),
        (ContentFiltered, "no", 1),
        (Broken, "7: odd", 1),
    ]
    told = [(reply.endpoint, reply.attempts, reply.choices) for reply in table.sink.replies]
    assert told == [("http://h/v1", 6, []), ("Failing", 1, []), ("Failing", 1, [])]


@pytest.mark.parametrize(("siblings", "sampling"), [(True, None), (False, Sampling(temperature=0))])
async def test_what_draws_share_that_fail_together_is_told_and_counted_once(siblings: bool, sampling: Sampling | None):
    table = open_table(Failing(LLMError("late", attempts=6), siblings=siblings), 3, sampling=sampling)
    found = await outcomes(table)
    assert [error.attempts for error in found] == [6, 1, 1]
    assert len({id(error) for error in found}) == 3, "each gets a traceback of its own"
    assert [reply.attempts for reply in table.sink.replies] == [6]


async def test_an_error_of_somebodys_own_is_shared_whatever_its_class_takes():
    table = open_table(Failing(Broken(7, hint="odd"), siblings=True), 3)
    assert [str(error) for error in await outcomes(table)] == ["7: odd"] * 3


async def test_what_was_never_sent_is_not_told():
    table = open_table(Failing(LLMError("the deadline is near", attempts=0)), 1)
    await outcomes(table)
    assert table.sink.replies == []


class Closed(EndpointError):
    """An end of the run that is somebody's own, made in its own way."""

    def __init__(self, code: int, *, hint: str) -> None:
        Exception.__init__(self, f"{code}: {hint}")


async def test_an_end_of_the_run_reaches_every_draw_whatever_its_class_takes():
    table = open_table(Failing(Closed(7, hint="gone"), siblings=True), 3)
    asking = (rollout.ask(table.compiled) for rollout in table.rollouts)
    found = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 5)
    assert [(type(error), str(error)) for error in found] == [(Closed, "7: gone")] * 3
    assert len({id(error) for error in found}) == 3


class Taking(Failing):
    """An LLM that has its answer read, and fails all the same."""

    async def complete(self, request: Request) -> Reply:
        assert request.take is not None
        request.take(completion(["x"]), 0, 1, 5)
        return await super().complete(request)


async def test_a_request_that_was_read_and_fails_all_the_same_is_told_once():
    table = open_table(Taking(LLMError("late")), 1)
    await asyncio.gather(*(rollout.ask(table.compiled) for rollout in table.rollouts), return_exceptions=True)
    assert told(table) == turns(table) == len(table.sink.replies) == 1
