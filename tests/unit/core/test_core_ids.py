"""Token ids of a tree through the bindings: bodies, alignment, prompts settled on a path, replies that bring ids."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import (
    PROMPT,
    SAMPLED,
    TRUNCATED,
    CoreTree,
    ReplyOptions,
    TokenBuffer,
    align_ids,
    append_reply,
    drift,
    drift_of,
    give_ids,
    harvest,
    last_ids,
    read_reply,
    request_ids,
    settle_ids,
)
from trunkline.errors import ArgumentError, ReplyError, TreeError

END = 99
ids = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6)


def grown(prompt: Sequence[int] = (1, 2, 3), said: Sequence[int] = (4, 5, END)) -> tuple[CoreTree, int, int]:
    """A prompt, a turn and two observations without ids; the tree, its rollout and its leaf."""
    tree = CoreTree()
    node = tree.append(0, PROMPT, b'{"p":1}', 0, TokenBuffer(prompt))
    rollout = tree.open(node, [0, 0])
    tree.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, None, TokenBuffer(said, [-0.5] * len(said)))
    tree.observe(rollout, b'{"a":1}', 0, 5)
    return tree, rollout, tree.observe(rollout, b'{"b":1}', 0, 5)


def runs(tree: CoreTree) -> list[list[int] | None]:
    found = [tree.tokens_of(node) for node in range(1, len(tree))]
    return [None if tokens is None else list(tokens.ids) for tokens in found]


@given(ids, ids, ids)
@settings(max_examples=50)
def test_a_body_of_ids_is_json(prompt: list[int], said: list[int], seen: list[int]):
    tree, _, leaf = grown(prompt, said)
    with pytest.raises(ArgumentError, match="node 3 has no token ids"):
        request_ids(tree, leaf, b"[", b"]")
    give_ids(tree, leaf, seen)
    body = request_ids(tree, leaf, b'{"p":[', b'],"n":1}')
    assert json.loads(body) == {"p": prompt + said + seen, "n": 1}
    assert body == b'{"p":[' + ",".join(map(str, prompt + said + seen)).encode() + b'],"n":1}'
    assert list(last_ids(tree, leaf)) == prompt + said + seen
    assert list(last_ids(tree, leaf, 2)) == (prompt + said + seen)[-2:]
    assert runs(tree) == [prompt, said, [], seen]


@given(ids, ids)
@settings(max_examples=50)
def test_alignment_is_the_longest_common_prefix(said: list[int], prompt: list[int]):
    tree, _, leaf = grown([1, 2, 3], said)
    path = [1, 2, 3, *said]
    for start in range(len(path) + 1):
        other = path[:start] + prompt
        common = next(
            (i for i, (a, b) in enumerate(zip(path, other, strict=False)) if a != b), min(len(path), len(other))
        )
        assert align_ids(tree, leaf, other) == (common, len(path), [3, 4])


def test_a_prompt_in_step_gives_its_rest_to_the_last_node():
    tree, _, leaf = grown()
    assert settle_ids(tree, leaf, [1, 2, 3, 4, 5, END, 7, 8], "fork", 5) is None
    assert runs(tree)[2:] == [[], [7, 8]]
    assert settle_ids(tree, leaf, [1, 2, 3, 4, 5, END, 7, 8], "fork", 5) is None, "again changes nothing"
    tree.check()


def test_a_bridge_keeps_the_path_and_finds_what_is_new():
    tree, rollout, leaf = grown()
    context = settle_ids(tree, leaf, [1, 2, 3, 45, END, 7, 8], "bridge", 5)
    assert context is not None
    assert runs(tree)[2:] == [[], [7, 8]]
    turn = tree.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, context, TokenBuffer([6], [-1.0]))
    policy, keep, given_ids = drift_of(tree, turn)
    assert (policy, keep, list(given_ids.ids)) == ("bridge", 3, [])
    assert list(last_ids(tree, turn)) == [1, 2, 3, 4, 5, END, 7, 8, 6]
    assert tree.rollout(rollout).usage[8:] == (1, 0, 0)
    tree.check()


@pytest.mark.parametrize(
    ("policy", "limit", "prompt", "becomes"),
    [
        ("realign", 4, [1, 2, 3, 45, END, 7], "realign"),
        ("realign", 3, [1, 2, 3, 45, END, 7], "fork"),
        ("bridge", 4, [1, 2, 3, 45, 7], "realign"),
        ("bridge", 3, [1, 2, 3, 45, 7], "fork"),
        ("bridge", 9, [1, 9, 3, 4, 5, END, 7], "realign"),
        ("fork", 9, [1, 2, 3, 45, END, 7], "fork"),
        ("realign", 9, [1, 2], "realign"),
    ],
)
def test_a_prompt_that_parts_becomes_what_the_policy_and_its_limit_say(
    policy: str, limit: int, prompt: list[int], becomes: str
):
    tree, rollout, leaf = grown()
    context = settle_ids(tree, leaf, prompt, policy, limit)
    assert runs(tree)[2:] == [[], []], "what the model was given is in the context"
    assert json.loads(request_ids(tree, leaf, b"[", b"]", context)) == prompt
    turn = tree.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, context, TokenBuffer([6], [-1.0]))
    assert drift_of(tree, turn)[0] == becomes
    assert list(last_ids(tree, turn)) == [*prompt, 6]
    assert drift_of(tree, 1) is None
    tree.check()


@pytest.mark.parametrize("policy", ["bridge", "realign", "fork"])
def test_what_a_last_message_says_is_known_though_it_has_no_ids_of_its_own(policy: str):
    tree, _, leaf = grown()
    give_ids(tree, leaf, [7, 8])
    other = tree.open(2, [0, 1])
    first = tree.observe(other, b'{"a":1}', 0, 5)
    context = settle_ids(tree, first, [1, 2, 3, 4, 5, END, 6], policy, 1)
    turn = tree.turn(other, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, context, TokenBuffer([9], [-1.0]))
    assert list(last_ids(tree, turn)) == [1, 2, 3, 4, 5, END, 6, 9]
    assert drift_of(tree, turn)[0] == "realign", "nothing of the path gives way, so nothing forks"
    columns = harvest([tree])
    start, end = columns.offsets[turn], columns.offsets[turn + 1]
    assert (columns.parents[turn], list(columns.ids[start:end])) == (first, [6, 9]), "nothing is repeated"
    tree.check()


def test_a_bridge_goes_on_behind_what_a_model_was_given_not_behind_what_the_path_says():
    tree, rollout, leaf = grown()
    given_ids = [1, 2, 30, 5, END, 7, END, 8]
    context = settle_ids(tree, leaf, given_ids, "realign", 9)
    tree.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, context, TokenBuffer([6, 5, END], [-1.0] * 3))
    leaf = tree.observe(rollout, b'{"c":1}', 0, 5)
    # The END in the middle of what it was given ends no turn of the path.
    assert settle_ids(tree, leaf, [*given_ids, 65, END, 9, 8], "bridge", 9) is not None
    assert list(last_ids(tree, leaf)) == [*given_ids, 6, 5, END, 9, 8]
    tree.check()


def test_a_bridge_drops_nothing_where_no_message_waits_for_it():
    tree, _, leaf = grown()
    give_ids(tree, leaf, [7, 8])
    other = tree.open(2, [0, 1])
    first = tree.observe(other, b'{"a":1}', 0, 5)
    prompt = [1, 2, 3, 45, END, 6]
    context = settle_ids(tree, first, prompt, "bridge", 9)
    turn = tree.turn(other, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, context, TokenBuffer([9], [-1.0]))
    assert list(last_ids(tree, turn)) == [*prompt, 9]
    assert drift_of(tree, turn)[0] == "realign"
    assert settle_ids(tree, leaf, [1, 2, 3, 45, END, 7, 8], "bridge", 9) is not None, "here the path has all of it"
    assert list(last_ids(tree, leaf)) == [1, 2, 3, 4, 5, END, 7, 8]


@pytest.mark.parametrize(("said", "flags"), [([4, 5, 4], [SAMPLED] * 3), ([5, 4], [SAMPLED, SAMPLED | TRUNCATED])])
def test_a_bridge_trusts_no_end_that_text_can_spell(said: list[int], flags: list[int]):
    tree = CoreTree()
    rollout = tree.open(tree.append(0, PROMPT, b"{}", 0, TokenBuffer([1])), [0])
    own = TokenBuffer(said, [-0.5] * len(said), flags=flags)
    tree.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, None, own)
    leaf = tree.observe(rollout, b'{"a":1}', 0, 5)
    prompt = [1, 6, 4, 5, 4, END, 7]
    context = settle_ids(tree, leaf, prompt, "bridge", 9)
    assert json.loads(request_ids(tree, leaf, b"[", b"]", context)) == prompt, "it realigns"


def test_bad_input_is_refused():
    tree, _, leaf = grown()
    with pytest.raises(ArgumentError, match="must be bridge, realign or fork"):
        settle_ids(tree, leaf, [1], "sail", 5)
    with pytest.raises(ArgumentError, match="a bridge with tokens"):
        drift(tree, "bridge", 1, TokenBuffer([1]))
    for work in (lambda: align_ids(tree, 99, [1]), lambda: drift_of(tree, 99), lambda: give_ids(tree, 99, [1])):
        with pytest.raises(TreeError, match="node 99 does not exist"):
            work()
    plain = CoreTree()
    rollout = plain.open(plain.append(0, PROMPT, b"{}"), [0])
    turn = plain.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0)
    with pytest.raises(ArgumentError, match="is a model turn"):
        give_ids(plain, turn, [1, 2])


def chat(prompt: list[int] | None, said: list[list[int] | None], listed: int = 9) -> bytes:
    choices = []
    for index, own in enumerate(said):
        message = {"role": "assistant", "content": f"text {index}"}
        logprobs = {"content": [{"token": "x", "logprob": -0.25} for _ in (own or ())[:listed]]}
        choices.append(
            {"index": index, "message": message, "finish_reason": "stop", "logprobs": logprobs, "token_ids": own}
        )
    return json.dumps({"choices": choices, "prompt_token_ids": prompt}).encode()


def test_a_reply_settles_its_prompt_and_brings_its_turns():
    tree = CoreTree()
    leaf = tree.append(0, PROMPT, b"{}")
    rollouts = [tree.open(leaf, [0, draw]) for draw in range(2)]
    data = chat([1, 2], [[3, END], [4, END]])
    choices, *_ = append_reply(tree, rollouts, ReplyOptions(), data, "", "", 0, 0, 9, leaf, None, ("bridge", 9))
    assert [choice[4] for choice in choices] == [2, 3]
    assert runs(tree) == [[1, 2], [3, END], [4, END]]
    assert list(tree.tokens_of(2).flags) == [SAMPLED, SAMPLED]
    assert list(tree.tokens_of(2).logprobs) == [-0.25, -0.25]
    assert tree.tokens()[-1] is True
    tree.check()


@pytest.mark.parametrize(
    ("data", "parting", "says"),
    [
        (chat(None, [[3]]), ("bridge", 9), "no token ids of its prompt"),
        (chat([1], [None]), ("bridge", 9), "no token ids of what it generated"),
        (chat([1], [[]]), ("bridge", 9), "no token ids of what it generated"),
        (chat([], [[3]]), ("bridge", 9), "no token ids of its prompt"),
        (chat([1], [[3, 4]], 1), ("bridge", 9), "2 token ids and 1 log-probabilities"),
        (chat([1], [[3, 4]], 0), None, "2 token ids and 0 log-probabilities"),
        (chat([1], [[2**32 - 1]], 0), None, "1 token ids and 0 log-probabilities"),
        (chat([7], [[3]]), None, "says that it was given 1 ids"),
    ],
)
def test_a_reply_that_lacks_ids_makes_no_turn(data: bytes, parting: tuple[str, int] | None, says: str):
    tree = CoreTree()
    leaf = tree.append(0, PROMPT, b"{}", 0, TokenBuffer([1]))
    rollout = tree.open(leaf, [0])
    ((*_, node, _, fault),), *_ = append_reply(
        tree, [rollout], ReplyOptions(), data, "", "", 0, 0, 9, leaf, None, parting
    )
    assert node == -1
    assert says in fault
    assert len(tree) == 2


def test_a_choice_that_lacks_ids_costs_its_siblings_nothing():
    tree = CoreTree()
    leaf = tree.append(0, PROMPT, b"{}")
    rollouts = [tree.open(leaf, [0, draw]) for draw in range(3)]
    data = chat([1], [[3, END], None, [2**32 - 1, END]])
    choices, *_ = append_reply(tree, rollouts, ReplyOptions(), data, "", "", 0, 0, 9, leaf, None, ("bridge", 9))
    assert [choice[4] for choice in choices] == [2, -1, 3]
    assert "no token ids of what it generated" in choices[1][6]
    assert runs(tree) == [[1], [3, END], [2**32 - 1, END]]
    tree.check()


def test_completions_and_generations_are_read():
    completion = {"text": "a b", "finish_reason": "length", "token_ids": [5, 6], "prompt_token_ids": [1]}
    logprobs = {"tokens": ["a", " b"], "token_logprobs": [-0.5, -1.0], "top_logprobs": [{"a": -0.5}, None]}
    data = json.dumps({"choices": [{**completion, "logprobs": logprobs}]}).encode()
    reply = read_reply(data, form="completion")
    (choice,) = reply.choices
    assert (choice.content, choice.finish, choice.aligned) == ("a b", "length", True)
    assert (list(choice.tokens.ids), list(choice.tokens.logprobs)) == ([5, 6], [-0.5, -1.0])
    assert list(reply.prompt_ids) == [1]
    meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 5, None]], "completion_tokens": 1}
    one = {"text": "a", "output_ids": [5], "meta_info": meta}
    reply = read_reply(json.dumps([one, one]).encode(), form="generate")
    assert [choice.content for choice in reply.choices] == ["a", "a"]
    assert reply.generated == 2
    with pytest.raises(ReplyError, match='"text" is missing'):
        read_reply(b'{"choices":[{"message":{"content":"x"}}]}', form="completion")
    with pytest.raises(ArgumentError, match="must be chat, completion or generate"):
        read_reply(b"{}", form="speech")
