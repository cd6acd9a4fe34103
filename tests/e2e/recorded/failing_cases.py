"""Recorded runs whose servers fail, refuse, or reply nonsense."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from agent_cases import WORDS, scripted, scripted_agent, sim_agent, simulated
from aiohttp import web
from replies import Body, at_once, cast, choice, completion, failing_first, lost_in, refused, says
from small_teams import TEAMS
from stage import DROPPED, Handler, Stage
from table import case

import trunkline as tl

PLAIN = tl.Sampling(max_tokens=50)


def raw(body: str | bytes, status: int = 200, kind: str = "application/json") -> Callable[[], web.Response]:
    data = body if isinstance(body, bytes) else body.encode()
    return lambda: web.Response(body=data, status=status, content_type=kind, headers={"retry-after-ms": "1"})


def patient(stage: Stage, handler: Handler, retries: int) -> tl.LLM:
    """A client that sends one request at a time, also to a server that fails many times in a row."""
    routing = tl.llms.Routing(eject_after=10**6)
    return tl.LLM(stage.serve(handler), max_retries=retries, siblings=False, routing=routing)


def later(refusal: Callable[[], web.Response]) -> Callable[[Body, int], Any]:
    """A server that refuses some requests behind the first turn."""
    plain, some = lost_in(), failing_first(99, refusal, lost_in(), 0.4)
    return lambda body, nth: (plain if len(body["messages"]) < 3 else some)(body, nth)


HUGE = json.dumps(completion([choice("x" * 300_000 + "<answer>1</answer>")]))

STATUSES: dict[str, Callable[[], Any]] = {
    **{f"status {status}": partial(at_once, status) for status in (408, 409, 429, 500, 502, 503, 504, 529)},
    "a page": raw("<html>Bad gateway</html>", 502, "text/html"),
    "an error in a reply": raw('{"error": {"message": "overloaded", "code": 503}}'),
}
NO_REPLIES: dict[str, Callable[[], Any]] = {
    "no JSON": raw("{"),
    "nothing": raw(""),
    "no choices": raw('{"choices": []}'),
    "null": raw("null"),
    "wrong types": raw('{"choices": [{"message": {"content": 7, "tool_calls": "x"}}], "usage": "many"}'),
    "no text": raw(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
}


@case("statuses, then a reply")
def then_replies(stage: Stage) -> None:
    """Runs of servers that fail twice at every request."""
    for name, fault in STATUSES.items():
        llm = patient(stage, failing_first(2, fault, lost_in()), 3)
        scripted(stage, tl.Chain(2), agent=scripted_agent(sampling=PLAIN), llm=llm, tasks=WORDS[:2], name=name)


@case("no replies, then a reply")
def then_a_reply(stage: Stage) -> None:
    """A run of a server that breaks some replies; a broken reply is asked for once more, after a while."""

    def breaking(body: Body, nth: int) -> Any:
        luck = random.Random(json.dumps(body))
        fault = luck.choice(list(NO_REPLIES.values()))
        return fault() if nth == 0 and luck.random() < 0.4 else lost_in()(body, nth)

    llm = patient(stage, breaking, 3)
    scripted(stage, tl.Chain(6), agent=scripted_agent(sampling=PLAIN), llm=llm)


FAULTS = STATUSES | NO_REPLIES
for name in ("status 429", "status 500", "no JSON", "wrong types"):
    case(f"{name} for a third, again and again")(
        lambda stage, fault=FAULTS[name]: scripted(
            stage,
            tl.Chain(4),
            agent=scripted_agent(sampling=PLAIN),
            llm=patient(stage, failing_first(99, fault, lost_in(), 0.3), 1),
        )
    )
case("a dropped connection, then a reply")(
    lambda stage: scripted(
        stage,
        tl.Chain(1),
        agent=scripted_agent(sampling=PLAIN),
        llm=stage.serve(failing_first(1, lambda: DROPPED, lost_in(), 0.3)),
    )
)

REFUSALS: dict[str, Callable[[], web.Response]] = {
    "bad request": lambda: refused(400, "no such parameter: top_q", "bad_parameter"),
    "context": lambda: refused(400, "This model's maximum context length is 7 tokens.", "context_length_exceeded"),
    "content filter": lambda: refused(400, "The response was filtered.", "content_filter"),
    "unprocessable": lambda: refused(422, "body: messages: wrong"),
    "too large": lambda: refused(413, "too large"),
    "teapot": lambda: refused(418, "short and stout\u001b[2J"),
}
for name, refusal in REFUSALS.items():
    case(f"refused for a third, {name}")(
        lambda stage, refusal=refusal: scripted(
            stage,
            tl.Chain(4),
            agent=scripted_agent(sampling=PLAIN),
            llm=patient(stage, failing_first(99, refusal, lost_in(), 0.3), 1),
        )
    )
    case(f"refused in later turns, {name}")(
        lambda stage, refusal=refusal: scripted(
            stage,
            tl.TreeGRPO(trees=2, forks=2),
            agent=scripted_agent(sampling=PLAIN),
            llm=patient(stage, later(refusal), 1),
        )
    )


for status in (401, 404):
    case(f"refused always, {status}")(
        lambda stage, status=status: scripted(
            stage,
            tl.Chain(1),
            tasks=WORDS[:1],
            agent=scripted_agent(sampling=PLAIN),
            llm=tl.LLM(stage.serve(lambda body, nth: refused(status, "no", "wrong")), max_retries=0, max_concurrency=1),
        )
    )


@case("a server without n")
def no_n(stage: Stage) -> None:
    def picky(body: Body, nth: int) -> Any:
        return (
            refused(400, "n: not supported", "unsupported_parameter") if body.get("n", 1) > 1 else lost_in()(body, nth)
        )

    scripted(stage, tl.Chain(4), tasks=WORDS[:1], agent=scripted_agent(sampling=PLAIN), handler=picky)


@case("a server that returns more than it was asked for")
def more(stage: Stage) -> None:
    def generous(body: Body, nth: int) -> Any:
        return lost_in()(body | {"n": (body.get("n") or 1) + 2}, nth)

    scripted(stage, tl.Chain(3), agent=scripted_agent(sampling=PLAIN), handler=generous)


@case("replies that are large")
def large(stage: Stage) -> None:
    scripted(stage, tl.Chain(2), agent=scripted_agent(sampling=PLAIN), handler=lambda body, nth: raw(HUGE)())


@case("turns with too many calls")
def crowded(stage: Stage) -> None:
    def calls(body: Body, nth: int) -> Body:
        if len(body["messages"]) > 1:
            return says("<answer>1</answer>")
        return completion([choice(None, [("look", '{"what": "x"}')] * (1001 if body["seed"] % 2 else 20))])

    llm = tl.LLM(stage.serve(calls), siblings=False)
    scripted(stage, tl.Chain(4), tasks=WORDS[:1], agent=scripted_agent(sampling=PLAIN), llm=llm)


@case("a simulator that fails now and then")
def simulated_failures(stage: Stage) -> None:
    simulated(
        stage,
        tl.Chain(1),
        agent=sim_agent(sampling=tl.Sampling(max_tokens=400), max_turns=4),
        llm=tl.LLM(stage.sim(fail_rate=0.2), siblings=False),
    )


for name in ("stubborn", "loop", "council"):
    # What is asked beside a request that fails may or may not come back in time to be counted.
    case(f"team whose server fails, {name}", *(("digests", "trees") if name == "council" else ()))(
        lambda stage, name=name: stage.run(
            TEAMS[name],
            WORDS,
            llm=tl.LLM(stage.serve(failing_first(99, partial(refused, 400, "no"), cast, 0.1)), max_retries=0),
            strategy=tl.Chain(3),
        )
    )
