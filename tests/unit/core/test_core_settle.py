"""Conversations of several rollouts with a naive server that renders anew: the tree holds what the server saw."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline._core import (
    PROMPT,
    SAMPLED,
    CoreTree,
    ReplyOptions,
    append_reply,
    drift_of,
    harvest,
    last_ids,
    pack_ragged,
    pack_tree,
)

END, OPEN, PAIR = 3, 4, 1 << 20
"""What ends a message, what opens a turn, and the first id that spells two letters."""

# Few, so that rollouts often say and see the same.
words = st.sampled_from(["ab", "aba"])
cuts = st.sampled_from([(True,) * 9, (False,) * 9])
policies = st.sampled_from(["bridge", "realign", "fork"])


def encode(text: str, pairs: Sequence[bool]) -> list[int]:
    """Ids of a text: two letters at a time where it says so."""
    ids, at = [], 0
    while at < len(text):
        if at + 1 < len(text) and pairs[at]:
            ids.append(PAIR + (ord(text[at]) << 8) + ord(text[at + 1]))
            at += 2
        else:
            ids.append(ord(text[at]))
            at += 1
    return ids


def spelt(ids: Sequence[int]) -> str:
    return "".join(chr(i - PAIR >> 8) + chr(i - PAIR & 255) if i >= PAIR else chr(i) for i in ids)


class Server:
    """Renders whole conversations, always in the same way, and samples in any."""

    def prompt(self, messages: list[dict]) -> list[int]:
        ids = []
        for message in messages:
            mark = [] if message["role"] == "assistant" else [ord(message["role"][0])]
            ids += [OPEN] if message["role"] == "assistant" else []
            ids += [*mark, *encode(message["content"], [True] * 9), END]
        return [*ids, OPEN]

    def reply(self, prompt: list[int], text: str, pairs: Sequence[bool]) -> tuple[bytes, list[int]]:
        ids = [*encode(text, pairs), END]
        choice = {
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "token_ids": ids,
            "logprobs": {"content": [{"token": "x", "logprob": -0.5}] * len(ids)},
        }
        return json.dumps({"choices": [choice], "prompt_token_ids": prompt}).encode(), ids


step = st.tuples(st.integers(0, 2), words, cuts, st.lists(st.sampled_from(["a", "bb"]), min_size=1, max_size=2))


@given(policies, st.integers(1, 12), st.lists(step, min_size=1, max_size=9))
@settings(max_examples=300)
def test_the_tree_holds_what_the_server_saw(policy: str, limit: int, steps: list[tuple]):
    tree, server, reading = CoreTree(), Server(), ReplyOptions()
    leaf = tree.append(0, PROMPT, b'{"role":"user","content":"ab"}')
    rollouts = [tree.open(leaf, [0, draw]) for draw in range(3)]
    sampled: dict[int, list[int]] = {}
    for turn, (rollout, text, pairs, seen) in enumerate(steps):
        at = tree.rollout(rollouts[rollout]).leaf
        prompt = server.prompt([json.loads(tree.message(node)) for node in tree.path(at)])
        data, own = server.reply(prompt, text, pairs)
        ((choice,), *_) = append_reply(
            tree, [rollouts[rollout]], reading, data, "", "", turn, 0, 1, at, None, (policy, limit)
        )
        node, fault = choice[4], choice[6]
        assert not fault
        ids = list(last_ids(tree, node))
        assert ids[len(ids) - len(own) :] == own
        before, drift = ids[: len(ids) - len(own)], drift_of(tree, node)
        assert spelt(before) == spelt(prompt), "nothing is lost and nothing doubled"
        if drift is None or drift[0] != "bridge":
            assert before == prompt
        sampled[node] = own
        for place, words in enumerate(seen):
            message = json.dumps({"role": "tool", "content": words, "n": place}).encode()
            tree.observe(rollouts[rollout], message, 0, 1)
    tree.check()
    check_samples(tree, sampled)


def check_samples(tree: CoreTree, sampled: dict[int, list[int]]) -> None:
    """A rollout's row is what its model was given last, and trains nothing but what was sampled."""
    columns = harvest([tree])
    tokens = (columns.offsets, columns.ids, columns.logprobs, columns.versions, columns.flags)
    leaves = [*columns.leaves, *columns.segment_leaves]
    rows = pack_ragged(columns.parents, leaves, *tokens)
    for row, leaf in enumerate(leaves[: len(columns.leaves)]):
        ids = rows.ids[rows.offsets[row] : rows.offsets[row + 1]]
        assert list(ids) == last_known(tree, leaf)
        mask = rows.loss_mask[rows.offsets[row] : rows.offsets[row + 1]]
        turns = [tuple(sampled[node]) for node in tree.path(leaf) if node in sampled]
        assert sum(mask) <= sum(map(len, turns))
        if turns:
            end = list(mask)[::-1].index(1)
            assert tuple(ids[len(ids) - end - len(turns[-1]) : len(ids) - end]) == turns[-1]
    packed = pack_tree(columns.parents, leaves, *tokens)
    assert sum(packed.loss_mask) <= sum(1 for flag in columns.flags if flag & SAMPLED)


def last_known(tree: CoreTree, leaf: int) -> list[int]:
    """What a model was given at a node, up to the last one with ids."""
    while tree.tokens_of(leaf) is None and leaf:
        leaf = tree.node(leaf).parent
    return list(last_ids(tree, leaf)) if leaf else []
