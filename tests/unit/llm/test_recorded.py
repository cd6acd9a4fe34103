"""Turns on record, read back as the program had them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from plain_reply import assistant

from trunkline._core import PROMPT, ROOT, CoreTree
from trunkline._internal.text import scrub
from trunkline.llm import messages
from trunkline.llm.response import recorded, steps
from trunkline.llm.types import ReplyChoice, ToolCall

# Whatever begins with our own mark could be ours.
arguments = st.one_of(
    st.text().filter(lambda text: not text.lstrip().startswith('{"malformed"')),
    st.sampled_from(
        [
            '{"a": 1}',
            '{"malformed": "{}"}',
            '{"malformed": 1}',
            '{"malformed":""}',
            "{}",
            "",
            " ",
            "[1]",
            "null",
            '{"a": ',
            "\ud800",
        ]
    ),
)
names = st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True)


@given(content=st.text(), listed=st.lists(st.tuples(names, arguments), max_size=4), aside=st.sampled_from([None, "hm"]))
def test_a_turn_is_read_back_as_it_was_said(content, listed, aside):
    core = CoreTree()
    prompt = core.append(ROOT, PROMPT, b'{"role":"user","content":"?"}')
    rollout = core.open(prompt, [0, 0])
    calls = [ToolCall("server", *call) for call in listed]
    node = core.turn(
        rollout, assistant(content, calls, 0), 0, 0, core.name("stop"), 1, 0, 1, 0, 5, aside and aside.encode()
    )
    # Blank arguments mean none, and what no UTF-8 can hold was replaced.
    expected = [ToolCall("", name, scrub(given) if given.strip() else "{}") for name, given in listed]
    assert recorded(core, node) == ReplyChoice(scrub(content), aside, expected, "stop")


def test_the_steps_of_a_path_are_its_turns_with_their_observations():
    core = CoreTree()
    node = core.append(ROOT, PROMPT, b'{"role":"user","content":"?"}')
    rollout = core.open(node, [0, 0])
    for turn, count in enumerate((2, 0, 1, 0)):
        core.turn(rollout, assistant(str(turn)), 0, 0, 0, 1, 0, 1, 0, 5)
        for index in range(count):
            core.observe(rollout, messages.tool(messages.call_id(turn, index), f"{turn} {index}"), 0, 5)
    path = core.path(core.rollout(rollout).leaf)
    assert [tuple(step) for step in steps(core, path)] == [(2, 0, [3, 4]), (5, 1, []), (6, 2, [7]), (8, 3, [])]
    assert [step.turn for step in steps(core, path[3:])] == [5, 6, 8], "from a node on"
    assert list(steps(core, path[:1])) == []
