"""An LLM of a user's own: the forms of its replies, and what is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.llm.types import Reply, ReplyChoice

TASKS = [tl.Task.ask(f"question {i}", "four", id=f"t{i}") for i in range(3)]
AGENT = tl.Agent(model="m")
USAGE = {"prompt_tokens": 7, "completion_tokens": 2}


class Own:
    """Returns what a function makes of a request."""

    def __init__(self, made: Callable[[tl.Request], Any]) -> None:
        self.made = made
        self.seen: list[tuple[str, int | None, int, str]] = []

    async def complete(self, request):
        self.seen.append((request.task, request.rollout, request.step, request.messages[-1]["content"]))
        return self.made(request)


class Sync(Own):
    def complete(self, request):
        self.seen.append((request.task, request.rollout, request.step, request.messages[-1]["content"]))
        return self.made(request)


class Several(Own):
    siblings = True


def completion(n: int = 1) -> dict:
    return {"choices": [{"message": {"content": "four"}, "finish_reason": "stop"}] * n, "usage": USAGE}


FORMS: dict[str, Callable[[tl.Request], Any]] = {
    "reply": lambda request: Reply([ReplyChoice("four")] * request.n, 7, 0, 2),
    "short": lambda request: tl.Reply([tl.llms.ReplyChoice("four")]),
    "dict": lambda request: completion(request.n),
    "bytes": lambda request: json.dumps(completion(request.n)).encode(),
    "text": lambda request: "four",
}


@pytest.mark.parametrize("kind", [Own, Sync, Several])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_reply(kind: type[Own], form: str):
    llm = kind(FORMS[form])
    run = tl.run(AGENT, TASKS, llm=llm, strategy=tl.Chain(2), reward="exact_match", seed=1)
    expected = tl.run(AGENT, TASKS, llm=Own(FORMS["reply"]), strategy=tl.Chain(2), reward="exact_match", seed=1)
    assert [tree.answer for tree in run] == ["four"] * 3
    assert run.summary().accuracy == expected.summary().accuracy
    assert {call.endpoint for _, call in run.calls()} == {kind.__name__}
    asked = {(task, rollout) for task, rollout, _, _ in llm.seen}
    assert asked >= {(f"t{i}", 0) for i in range(3)}
    if kind is not Several:
        assert asked == {(f"t{i}", draw) for i in range(3) for draw in range(2)}
    if form in {"dict", "bytes"}:
        assert run.summary().usage.prompt == expected.summary().usage.prompt


@pytest.mark.parametrize("kind", [Own, Sync])
@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "None, an object of type NoneType"),
        (3, "3, an object of type int"),
        (["four"], r"\['four'\], an object of type list"),
        ({"text": "four"}, r"\{'text': 'four'\}, a dict without choices"),
        ({"choices": {1, 2}, "x": object()}, r"\{'choices'.*, a dict that is no JSON"),
        ({"choices": []}, r"\{'choices': \[\]\}, which is no chat completion: its choices are empty"),
        ({"choices": [{"message": {"content": 5}}]}, r".*no chat completion: choices\[0\].message.content: a string"),
        (b"\xff", r"b'\\xff', which is no chat completion: the bytes are not UTF-8"),
        (tl.Reply("x"), r"a Reply, whose choices are 'x'; give a list .*Reply\(\[ReplyChoice\(text\)\]\), or return"),
        (tl.Reply([]), "a Reply, which has no choice"),
        (tl.Reply([ReplyChoice(5)]), r"a Reply, of which choices\[0\]\.content cannot be used: expected str, got int"),
        (
            tl.Reply([ReplyChoice("x", token_ids=[-1])]),
            r"a Reply, of which choices\[0\]\.token_ids\[0\] cannot",
        ),
    ],
)
def test_what_is_no_reply_ends_the_run_at_the_first_calls(kind: type[Own], made: object, says: str):
    llm = kind(lambda request: made)
    llm.max_concurrency = 1
    with pytest.raises(ConfigError, match=rf"^{kind.__name__}\.complete\(\) returned {says}") as caught:
        tl.run(AGENT, [tl.Task.ask("what?", id=str(number)) for number in range(100)], llm=llm, strategy=tl.Chain(2))
    assert "it may return a trunkline.Reply, a chat completion " in str(caught.value) or isinstance(made, tl.Reply)
    assert len(llm.seen) < 20, "what was asked in the same pass of the event loop"


def test_a_program_that_catches_everything_does_not_go_on():
    async def program(rollout: tl.programs.ProgramContext) -> None:
        for _ in range(100):
            try:
                await rollout.ask(AGENT)
            except Exception:  # noqa: BLE001
                continue

    llm = Own(lambda request: None)
    with pytest.raises(ConfigError, match="returned None"):
        tl.run(AGENT, TASKS, llm=llm, program=program)
    assert len(llm.seen) <= len(TASKS)


JSONLIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3) | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.fixed_dictionaries({"choices": JSONLIKE}), st.binary(max_size=40), st.builds(tl.Reply, JSONLIKE)),
    st.text(),
)
def test_what_an_llm_returns_is_a_reply_or_a_plain_error_of_the_run(made: object, text: str):
    llm = Own(lambda request: text if request.task == "t0" else made)
    try:
        run = tl.run(AGENT, TASKS, llm=llm)
    except ConfigError as error:
        says = str(error)
    else:
        says = "Own.complete() returned an answer"
        assert {one.termination for tree in run for one in tree.rollouts} == {tl.Termination.ANSWER}
    assert re.fullmatch(r"Own\.complete\(\) returned .+", says)


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("form", [dict, lambda body: json.dumps(body).encode()])
def test_a_servers_error_that_is_passed_on_ends_that_rollout(form: Callable[[dict], Any]):
    refusal = {"error": {"message": "overloaded"}}
    llm = Own(lambda request: completion() if request.task == "t0" else form(refusal))
    run = tl.run(AGENT, TASKS, llm=llm)
    assert [tree.rollouts[0].termination for tree in run] == ["answer", "llm_error", "llm_error"]
    assert "overloaded" in run["t1"].rollouts[0].error.message


@pytest.mark.parametrize("made", [tl.Reply("x"), {"choices": []}, None])
def test_what_a_judge_of_ones_own_returns_is_held_to_the_same(made: object, caplog: pytest.LogCaptureFixture):
    judge = tl.rewards.Judge("m", llm=Own(lambda request: made))
    run = tl.run(AGENT, TASKS, llm=Own(lambda request: "four"), reward=judge)
    assert run.summary().accuracy is None
    assert "the judge m gave no reply: Own.complete() returned " in caplog.text
