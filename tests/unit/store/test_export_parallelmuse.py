"""Records as ParallelMuse's scripts read them: what stands between which tags."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from exporting import NATIVE, begun, read_lines, say, write_run
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_reply import assistant

import trunkline as tl
from trunkline._core import TokenBuffer, read_reply
from trunkline.llm import messages
from trunkline.llm.types import ToolCall
from trunkline.store.export.formats import ParallelMuse, text_of, transcript
from trunkline.store.export.target import leaves
from trunkline.tree.views import Node, Tree
from trunkline.types import Task


def between(text: str, tag: str) -> str:
    """What stands between the last opener and the closer after it, as their scripts read it."""
    return text.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0].strip()


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall("1", name, json.dumps(arguments))


def looked_up(found: str = "Paris", thought: str | None = "I need a map.", **arguments: object) -> Tree:
    """A question, a call, its result, an answer; and a second try from the result on."""
    tree, point = begun(
        Task(id="q", messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Where?"}],
             reference=("Paris", "paris"))
    )  # fmt: skip
    core = tree.core
    first = core.open(point, [0, 0], 0)
    said = assistant("A map.", [call("lookup", **(arguments or {"country": "France"}))])
    say(tree, first, said, thought)
    state = core.observe(first, messages.tool(messages.call_id(0, 0), found), core.name("agent"), 1)
    say(tree, first, assistant("<answer>Paris</answer>"))
    core.close(first, "answer", "Paris")
    core.score(first, 1.0)
    second = core.open(state, [0, 0, 1, 1], 0)
    say(tree, second, assistant("I give up"))
    core.close(second, "max_turns", None)
    return tree


def test_a_record_is_in_their_words(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.run", [looked_up()], NATIVE)
    assert tl.export(path, tmp_path / "x.jsonl", format="parallelmuse").left_out == {}
    one, two = read_lines(tmp_path / "x.jsonl")
    system = one["rollout"][0]
    assert system["role"] == "system"
    assert system["content"].startswith("Be brief.\n\n# Tools")
    assert (
        json.loads(between(system["content"].split("</tools>\n")[0] + "</tools>", "tools"))
        == (NATIVE["agent"]["tools"][0])
    )
    assert one["rollout"][1:] == [
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": "<think>\nI need a map.\n</think>\n\nA map.\n"
            '<tool_call>\n{"name":"lookup","arguments":{"country":"France"}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\nParis\n</tool_response>"},
        {"role": "assistant", "content": "<answer>Paris</answer>"},
    ]
    del one["rollout"], one["prepand_msg"]
    assert one == {
        "question": "Where?",
        "answer": "Paris",
        "prediction": "Paris",
        "termination": "answer",
        "rollout_type": "traj_level_rollout",
        "task": "q",
        "rollout_id": 0,
        "path": [0, 0],
        "weight": 1,
        "reward": 1.0,
        "references": ["Paris", "paris"],
        "compressed_reasoning": None,
    }
    assert (two["prediction"], two["termination"]) == ("[No Prediction]", "max_turn_exceeded")


def test_a_forked_rollout_says_what_it_began_with(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.run", [looked_up()], NATIVE)
    tl.export(path, tmp_path / "x.jsonl", format="parallelmuse")
    one, two = read_lines(tmp_path / "x.jsonl")
    assert (one["rollout_type"], one["prepand_msg"]) == ("traj_level_rollout", one["rollout"][:2])
    assert (two["rollout_type"], two["prepand_msg"]) == ("partial_rollout", one["rollout"][:4])
    assert two["rollout"][:4] == two["prepand_msg"]
    assert two["path"] == [0, 0, 1, 1]


def test_a_rollout_whose_calls_failed_has_no_prediction(tmp_path: Path) -> None:
    tree, point = begun(Task.ask("Where?"))
    for draw, (word, answer) in enumerate([("llm_error", None), ("max_turns", None), ("answer", "  ")]):
        tree.core.close(tree.core.open(point, [0, draw], 0), word, answer)
    tl.export(write_run(tmp_path / "a.run", [tree]), tmp_path / "x.jsonl", format="parallelmuse")
    failed, cut, blank = read_lines(tmp_path / "x.jsonl")
    assert "prediction" not in failed
    assert failed["termination"] == "llm_error_occurred"
    assert cut["prediction"] == blank["prediction"] == "[No Prediction]"
    assert failed["answer"] == ""


def listed(*tokens: tuple[str, float]) -> TokenBuffer:
    """What a server says of the tokens of a turn, each with how surprising it was in nats."""
    content = [{"token": token, "logprob": -nats} for token, nats in tokens]
    body = {"choices": [{"index": 0, "message": {"content": "x"}, "logprobs": {"content": content}}]}
    return read_reply(json.dumps(body).encode(), entropy="surprisal").choices[0].tokens


def test_how_unsure_a_turn_was_is_told_where_it_is_known() -> None:
    tree, point = begun(Task.ask("Where?"))
    core = tree.core
    rollout = core.open(point, [0, 0], 0)
    names = core.name("agent"), core.name("m"), core.name("stop")
    sure = listed(("<think>", 0.0), ("hm", 1.0), ("</think>", 0.0), ("<tool_call>", 0.0), ("{}", 2.0), ("}", 3.0))
    calling = assistant("", [call("lookup", country="France")])
    core.turn(rollout, calling, *names, 1, 0, 2, 0, 1, None, None, sure)
    core.observe(rollout, messages.tool(messages.call_id(0, 0), "Paris"), names[0], 1)
    say(tree, rollout, assistant("Paris", [call("lookup", country="Spain")]))
    core.turn(rollout, assistant("Paris"), *names, 1, 0, 2, 0, 1, None, None, listed(("Paris", 2.0)))
    core.close(rollout, "answer", "Paris")
    record = ParallelMuse({}).record(*leaves(tree))
    turns = [message for message in record["rollout"] if message["role"] == "assistant"]
    told = turns[0]["step_ppl"]
    assert told == {
        "think_ppl": pytest.approx(math.exp(1)),
        "tool_call_ppl": pytest.approx(math.exp(2.5)),
        "all_ppl": pytest.approx(math.exp(1)),
    }
    assert "step_ppl" not in turns[1], "a turn that has the field may be resampled"
    assert turns[2]["step_ppl"] == {"think_ppl": -1, "tool_call_ppl": -1, "all_ppl": -1}, "it calls nothing"


def test_results_of_one_turn_are_one_message() -> None:
    tree, point = begun(Task.ask("Where?"))
    rollout = tree.core.open(point, [0, 0], 0)
    say(tree, rollout, assistant("", [call("lookup", a=1), call("lookup", a=2)]))
    for index, found in enumerate(["one", "two"]):
        tree.core.observe(rollout, messages.tool(messages.call_id(0, index), found), 0, 1)
    told = transcript(tree.rollouts[0].nodes)
    assert [message["role"] for message in told] == ["user", "assistant", "user"]
    assert told[1]["content"].count("<tool_call>") == 2
    assert told[2]["content"] == ("<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>")


def test_what_is_no_text_stands_as_its_type() -> None:
    parts = [{"type": "text", "text": "See "}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert text_of({"role": "user", "content": parts}) == "See [image_url]"
    assert text_of({"role": "assistant", "content": None, "refusal": "No."}) == "No."
    assert text_of({"role": "assistant", "content": None}) == ""


TAGS = st.sampled_from(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"])
HOSTILE = st.lists(TAGS | st.text('ab \n<>/\\"{', max_size=6), max_size=6).map("".join)


@settings(max_examples=80)
@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_ends_a_block_early(found: str, thought: str, argument: str) -> None:
    tree = looked_up(found, thought, country=argument)
    nodes: list[Node] = tree.rollouts[0].nodes
    told = transcript(nodes)
    turn, result = told[2]["content"], told[3]["content"]
    assert json.loads(between(turn, "tool_call")) == {"name": "lookup", "arguments": {"country": argument}}
    assert turn.count("<tool_call>") == turn.count("</tool_call>") == 1
    assert result.endswith("\n</tool_response>")
    assert result.count("</tool_response>") == 1
    assert between(result, "tool_response") == result[len("<tool_response>\n") : -len("\n</tool_response>")].strip()
    if thought:
        assert turn.count("<think>") == turn.count("</think>") == 1
