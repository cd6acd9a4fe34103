"""Conversations of tool calls alone, against a model that writes them down while the tree is made."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from groves import grove, said
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline.errors import ConfigError, UsageError
from trunkline.llm.dialects.builtin import SEARCH_R1_PROBLEM
from trunkline.tree.views import Tree

PROSE = st.text("abc <>/{}\"'\n", max_size=12).filter(lambda text: "<" not in text or ">" not in text)


class Turn(NamedTuple):
    """A turn: what it says before its calls and thinks, the calls' texts, and what it is answered."""

    prose: str
    thought: str
    calls: list[str]
    seen: list[str]


TURNS = st.lists(
    st.builds(Turn, PROSE, PROSE, st.lists(st.text("xyz", min_size=1, max_size=4), max_size=2), st.just([])),
    min_size=1,
    max_size=5,
)


def native(turn: Turn) -> tuple[dict, dict | None, list[dict]]:
    """A turn's message, the message without all but its calls, and the observations."""
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": json.dumps({"q": text})}}
        for number, text in enumerate(turn.calls)
    ]
    if not calls:
        return {"role": "assistant", "content": turn.prose}, None, []
    kept = {"role": "assistant", "content": None, "tool_calls": calls}
    seen = [{"role": "tool", "tool_call_id": call["id"], "content": "seen"} for call in calls]
    return kept | {"content": turn.prose or None}, kept, seen


def hermes(turn: Turn) -> tuple[dict, dict | None, list[dict]]:
    blocks = [f'<tool_call>\n{{"name": "look", "arguments": {{"q": "{text}"}}}}\n</tool_call>' for text in turn.calls]
    hidden = "<think>" + turn.thought + "<tool_call>{}</tool_call></think>"
    whole = {"role": "assistant", "content": hidden + turn.prose + turn.prose.join(blocks)}
    seen = [{"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"} for text in turn.calls]
    return whole, {"role": "assistant", "content": "\n".join(blocks)} if blocks else None, seen


def search_r1(turn: Turn) -> tuple[dict, dict | None, list[dict]]:
    query = "".join(turn.calls)
    content = f"<think>{turn.thought}<search>no</search></think>{turn.prose}"
    if not query:
        void = {"role": "user", "content": SEARCH_R1_PROBLEM}
        return {"role": "assistant", "content": content}, None, [void]
    seen = {"role": "user", "content": f"<information>\n{query}\n</information>"}
    kept = {"role": "assistant", "content": f"<search>{query}</search>"}
    return {"role": "assistant", "content": f"{content}<search> {query}</search>"}, kept, [seen]


def chain(turns: list[tuple[dict, dict | None, list[dict]]]) -> Tree:
    tree = grove([])
    core = tree.core
    agent, model, stop = (core.name(name) for name in ("agent", "m", "stop"))
    rollout = core.open(1, [0, 0], 0)
    for place, (message, _, seen) in enumerate(turns):
        core.turn(rollout, json.dumps(message).encode(), agent, model, stop, 10, 0, 5, 0, 1)
        for one in seen if place + 1 < len(turns) else ():
            core.observe(rollout, json.dumps(one).encode(), agent, 1)
    core.close(rollout, "answer", "yes")
    core.score(rollout, 1.0)
    core.check()
    return tree


@given(TURNS, st.sampled_from([native, hermes, search_r1]))
def test_calls_and_observations_of_earlier_turns_are_all_that_is_kept(turns, dialect):
    written = [dialect(turn) for turn in turns]
    tree = chain(written)
    samples = list(tl.train.turns([tree], estimator="dr_grpo", shared="once", history="calls"))
    expected: list[dict] = [{"role": "user", "content": "what?"}]
    for sample, (message, kept, seen) in zip(samples, written, strict=True):
        assert sample.messages == [*expected, message], "the turn itself is whole"
        expected += [kept, *seen] if kept else []
    whole = [s.conversation for s in tl.train.turns([tree], estimator="dr_grpo", shared="once", history="full")]
    assert whole == [s.conversation for s in tl.train.turns([tree], estimator="dr_grpo", shared="once")]


def test_calls_of_another_dialect_are_refused_and_not_left_out():
    tree = chain([({"role": "assistant", "content": "LOOK x"}, None, [json.loads(said("user", "seen x"))])] * 2)
    with pytest.raises(UsageError, match=r"node 3 answers a turn in which no tool call can be read.*history='full'"):
        list(tl.train.turns([tree], estimator="dr_grpo", shared="once", history="calls"))


def test_what_a_program_asked_stays_as_it_was_sent():
    tree = chain([({"role": "assistant", "content": "LOOK x"}, None, [json.loads(said("user", "seen x"))])] * 2)
    tree.core.mark('{"record":[0,0,"ask","a",[2],[],""]}')
    samples = [
        list(tl.train.turns([tree], estimator="dr_grpo", shared="once", history=history))
        for history in ("full", "calls")
    ]
    assert samples[0] == samples[1]


def test_an_unknown_history_is_an_error():
    with pytest.raises(ConfigError, match="history"):
        tl.train.turns([], estimator="dr_grpo", shared="once", history="short")
