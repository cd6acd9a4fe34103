"""A reply taken onto a tree in one step, against reading it and appending its choices one by one."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import PROMPT, CoreTree, ReplyOptions, append_reply, read_reply
from trunkline.errors import ArgumentError, CoreError, ReplyError

TEXT = st.text(max_size=12)
CALLS = st.lists(
    st.fixed_dictionaries({"name": TEXT, "arguments": st.sampled_from(["", "{}", '{"a": 1}', "[1]", "{"])}), max_size=2
)


@st.composite
def choices(draw: st.DrawFn) -> dict:
    message: dict = {"role": "assistant", "content": draw(st.none() | TEXT)}
    calls = draw(CALLS)
    if calls:
        message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    if draw(st.booleans()):
        message["reasoning_content"] = draw(TEXT)
    found: dict = {"message": message, "finish_reason": draw(st.sampled_from(["stop", "length", None]))}
    if draw(st.booleans()):
        found["token_ids"] = draw(st.lists(st.integers(0, 9), max_size=4))
    return found


COUNT = st.integers(0, 99)
USAGE = st.none() | st.fixed_dictionaries({"prompt_tokens": COUNT, "completion_tokens": COUNT})


def at_least(choice: dict) -> int:
    """Tokens that a choice must have: its ids, else its words."""
    if "token_ids" in choice:
        return max(1, len(choice["token_ids"]))
    message = choice["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    said = [message["content"] or "", message.get("reasoning_content", ""), *calls]
    return max(1, sum(len(re.findall(r"[^ \t\n\f\r]+", text)) for text in said) + len(calls))


def of_the_first(listed: list[dict], usage: dict | None) -> bool:
    """Whether usage can only be that of the first choice."""
    if usage is None or len(listed) < 2:
        return False
    least = [at_least(choice) for choice in listed]
    return least[0] <= usage["completion_tokens"] < sum(least)


def listed_besides(listed: list[dict], usage: dict) -> int:
    """Tokens of all choices but the first that are listed, if those of the first are."""
    counts = [len(one["token_ids"]) if "token_ids" in one else None for one in listed]
    if counts[0] != usage["completion_tokens"]:
        return 0
    return sum(count for count in counts[1:] if count is not None)


def planted(rollouts: int) -> tuple[CoreTree, list[int]]:
    tree = CoreTree()
    point = tree.append(0, PROMPT, b'{"role":"user","content":"?"}')
    return tree, [tree.open(point, (0, draw), draw) for draw in range(rollouts)]


@given(st.lists(choices(), min_size=1, max_size=4), USAGE, st.integers(1, 5))
@settings(max_examples=150)
def test_it_is_what_reading_and_appending_is(listed: list[dict], usage: dict | None, asked: int):
    data = json.dumps(
        {"choices": [{"index": i} | one for i, one in enumerate(listed)], "usage": usage, "model": "m"}
    ).encode()
    tree, rollouts = planted(asked)
    plain, same = planted(asked)
    agent, namespace = tree.name("a"), tree.name("ns")
    assert (plain.name("a"), plain.name("ns")) == (agent, namespace)

    found, prompt, cached, generated, served, estimated = append_reply(
        tree, rollouts, ReplyOptions(), data, "a", "ns", 3, 2, 77
    )

    reply = read_reply(data)
    figures = (reply.prompt, reply.cached, reply.generated)
    assert (prompt, cached, generated) == tuple(-1 if n is None else n for n in figures)
    assert (served, estimated) == ("m", reply.estimated)
    first_only = of_the_first(listed, usage)
    exact = listed_besides(listed, usage) if first_only else 0
    assert (estimated > 0) <= first_only
    assert generated == (-1 if usage is None else usage["completion_tokens"] + estimated + exact)
    assert len(found) == min(asked, len(listed))
    for place, (content, reasoning, calls, finish, node, size, fault) in enumerate(found):
        choice = reply.choices[place]
        message = choice.message(3)
        assert (content, reasoning, finish, fault) == (choice.content, choice.reasoning, choice.finish, "")
        assert calls == choice.tool_calls
        assert (tree.message(node), size) == (plain_message(tree, node, message), len(message))
        appended = plain.turn(
            same[place], message, agent, namespace, plain.name(finish), -1, -1, -1, 0, 77,
            reasoning.encode() if reasoning else None, None, choice.tokens if choice.has_ids else None,
        )  # fmt: skip
        assert appended == node
    assert tree.digest() == plain.digest()
    tree.check()
    total = sum(tree.rollout(number).usage[3] for number in rollouts)
    if usage and first_only:
        assert tree.rollout(rollouts[0]).usage[3] == usage["completion_tokens"], "what is known stays"
    if usage and asked >= len(listed) > 1 and (first_only or not all("token_ids" in one for one in listed)):
        assert total == generated, "shares add up"
    assert sum(tree.rollout(number).usage[5] for number in rollouts) == 2, "retries are counted once"


def plain_message(tree: CoreTree, node: int, message: bytes) -> bytes:
    """Turns of equal ids are one node, and the first message stays."""
    return tree.message(node) if tree.tokens_of(node) is not None else message


def test_what_cannot_be_read_changes_nothing():
    tree, rollouts = planted(1)
    before = tree.digest()
    for data in (b"", b"{}", b'{"choices":[{"message":{"content":1}}]}', b'{"error":{"message":"busy"}}'):
        with pytest.raises(ReplyError):
            append_reply(tree, rollouts, ReplyOptions(), data, "", "", 0, 0, 0)
    assert append_reply(tree, rollouts, ReplyOptions(), b'{"choices":[]}', "", "", 0, 0, 0)[0] == []
    assert tree.digest() == before
    good = b'{"choices":[{"message":{"content":"x"}}]}'
    with pytest.raises(CoreError):
        append_reply(tree, [5], ReplyOptions(), good, "", "", 0, 0, 0)
    with pytest.raises(ArgumentError):
        append_reply(tree, [-1], ReplyOptions(), good, "", "", 0, 0, 0)
    assert tree.digest() == before


@pytest.mark.parametrize("options", [{"top": 0}, {"version": -2}, {"entropy": "none"}, {"think": ("", "x")}])
def test_how_to_read_is_checked_once(options: dict):
    with pytest.raises(ArgumentError):
        ReplyOptions(**options)


def test_a_rollout_that_has_ended_has_a_fault():
    tree, rollouts = planted(1)
    tree.close(rollouts[0], "cancelled")
    ((*_, node, _, fault),) = append_reply(
        tree, rollouts, ReplyOptions(), b'{"choices":[{"message":{"content":"x"}}]}', "", "", 0, 0, 0
    )[0]
    assert (node, fault) == (-1, "the rollout had ended before its reply came")


def test_arpos_figure_is_kept_with_the_turn():
    """Two places: -2 (1/2) ln (1/2) and -(1/4) ln (1/4), summed, over ln V; nothing is renormalised."""
    tree, rollouts = planted(2)
    places = [[math.log(0.5)] * 2, [math.log(0.25)]]
    listed = [
        {"token": "a", "logprob": tops[0], "top_logprobs": [{"token": "a", "logprob": top} for top in tops]}
        for tops in places
    ]
    choices = [
        {"index": 0, "message": {"content": "a"}, "logprobs": {"content": listed}},
        {"index": 1, "message": {"content": "b"}},
    ]
    taken = append_reply(tree, rollouts, ReplyOptions(), json.dumps({"choices": choices}).encode(), "", "", 0, 0, 0)[0]
    known, unknown = (tree.node(choice[4]) for choice in taken)
    nats = math.log(2) + math.log(4) / 4
    assert known.opening == pytest.approx(nats, rel=1e-6)
    assert known.arpo(100) == pytest.approx(nats / math.log(100), rel=1e-6)
    assert math.isnan(known.arpo(1))
    assert math.isnan(unknown.opening)
    assert math.isnan(unknown.arpo(100))
    other = CoreTree()
    other.apply(tree.delta())
    assert other.node(taken[0][4]).opening == known.opening, "it travels"
