"""The parts of the core together: replies become a tree, the tree becomes advantages and rows, and nothing is lost."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest

from trunkline import _core
from trunkline._core import PROMPT, SAMPLED, CoreTree, Prefix, TokenBuffer, estimate, harvest, pack_tree, read_reply

PATHS = {0: (), 1: (), 2: (0, 1), 3: (0, 1), 4: (1, 1)}  # rollout: the rollout it was forked from, and at which turn
TURNS = 3


def reply(prompt: list[int], sampled: list[int], chance: random.Random) -> bytes:
    """What vLLM sends for ``return_token_ids`` and two top log-probabilities."""
    text = [f"t{token} " for token in sampled]
    entries = []
    for token in text:
        first = chance.uniform(0.5, 0.9)
        top = [{"token": token, "logprob": math.log(first)}, {"token": "x", "logprob": math.log(0.95 - first)}]
        entries.append({"token": token, "logprob": math.log(first), "bytes": list(token.encode()), "top_logprobs": top})
    return json.dumps(
        {
            "prompt_token_ids": prompt,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "".join(text)},
                    "finish_reason": "stop",
                    "logprobs": {"content": entries},
                    "token_ids": sampled,
                }
            ],
            "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)},
        }
    ).encode()


def grow(seed: int) -> tuple[CoreTree, dict[int, list[int]]]:
    """Two chains and three forks off them, with the ids of every rollout's whole path."""
    chance = random.Random(seed)
    tree = CoreTree()
    prompt = tree.append(0, PROMPT, b'{"role":"user","content":"?"}')
    states: dict[tuple[int, int], tuple[int, list[int]]] = {}
    wholes: dict[int, list[int]] = {}
    for number, origin in PATHS.items():
        node, ids = states[origin] if origin else (prompt, [7, 8, 9])
        first = origin[1] if origin else 0
        rollout = tree.open(node, [first, number], origin[0] if origin else number)
        for turn in range(first, TURNS):
            sampled = [chance.randrange(100, 999) for _ in range(chance.randrange(2, 9))]
            read = read_reply(reply(ids, sampled, chance), version=3)
            [choice] = read.choices
            assert list(read.prompt_ids) == ids
            # The prompt says what the message before it was to the model.
            path = tree.path(node)
            known = sum(len(tree.tokens_of(each) or ()) for each in path[:-1])
            tree.tokenise(node, TokenBuffer(read.prompt_ids[known:]))
            said = choice.message(turn)
            node = tree.turn(rollout, said, 0, 0, 0, read.prompt, -1, read.generated, 0, 5, None, None, choice.tokens)
            ids = ids + sampled
            if turn + 1 < TURNS:
                seen = [chance.randrange(10, 99) for _ in range(3)]
                node = tree.observe(rollout, json.dumps({"role": "tool", "content": str(seen)}).encode(), 0, 1)
                ids = ids + seen
                states[number, turn + 1] = node, ids
        tree.close(rollout, "answer", "42")
        tree.score(rollout, float(chance.random() < 0.5))
        wholes[rollout] = ids
    tree.check()
    return tree, wholes


@pytest.mark.parametrize("seed", range(5))
def test_replies_become_a_tree_with_exact_counts(seed: int) -> None:
    tree, wholes = grow(seed)
    flat, unique, flat_generated, unique_generated, longest, unreported, exact = tree.tokens()
    index = Prefix()
    space = index.space("model")
    for rollout in wholes:
        nodes = tree.path(tree.rollout(rollout).leaf)
        runs = [tree.tokens_of(node) for node in nodes]
        end = index.root(space)
        columns = [
            [number for run in runs for number in getattr(run, name)] for name in ("ids", "logprobs", "versions")
        ]
        end = index.insert(space, TokenBuffer(*columns, [flag for run in runs for flag in run.flags]))
        assert list(index.path(end).ids) == wholes[rollout] == columns[0]
    reuse = index.reuse()
    assert exact
    assert unreported == 0
    assert (flat, flat_generated, longest) == (reuse.flat, reuse.flat_generated, reuse.longest)
    # Siblings may start with the same ids by chance, which only the index sees.
    assert unique >= reuse.unique
    assert unique_generated >= reuse.unique_generated
    assert flat > unique >= longest


@pytest.mark.parametrize("seed", range(5))
def test_a_tree_becomes_rows_that_say_what_the_tree_said(seed: int) -> None:
    trees = [grow(seed)[0], grow(seed + 100)[0]]
    wholes = [ids for number in (seed, seed + 100) for ids in grow(number)[1].values()]
    all_ = harvest(trees)
    columns = (all_.parents, all_.leaves, all_.offsets, all_.ids, all_.logprobs, all_.versions, all_.flags)
    values, kept = estimate("tree_grpo", all_.rewards, group=all_.groups, subgroup=all_.subgroups)
    assert len(values) == len(kept) == len(wholes) == 2 * len(PATHS)
    packed = pack_tree(*columns, values=values)
    for rollout, ids in enumerate(wholes):
        row = packed.unpack(rollout)
        assert list(row.ids) == ids
        assert all((logprob < 0) == bool(flag & SAMPLED) for logprob, flag in zip(row.logprobs, row.flags, strict=True))
        assert {version for version, flag in zip(row.versions, row.flags, strict=True) if flag & SAMPLED} == {3}
    unique = sum(tree.tokens()[1] for tree in trees)
    assert len(packed.ids) == unique
    assert sum(packed.loss_mask) == sum(tree.tokens()[3] for tree in trees)
    # A token's weight is the share of its tree's rollouts that pass it, so the sum is the mean length of a path.
    rows = list(pairwise(packed.offsets))
    for (start, end), first in zip(rows, range(0, len(wholes), len(PATHS)), strict=True):
        lengths = [len(ids) for ids in wholes[first : first + len(PATHS)]]
        assert sum(packed.weights[start:end]) == pytest.approx(sum(lengths) / len(lengths), rel=1e-5)


def test_values_of_nodes_agree_wherever_they_are_asked() -> None:
    tree, _ = grow(11)
    all_ = harvest([tree])
    means, _, _ = _core.node_values(all_.parents, all_.leaves, all_.rewards)
    visits, sums, passes = tree.statistics()
    _, scored, asked = tree.values()
    for node in range(len(tree)):
        assert means[node] == pytest.approx(asked[node])
        assert means[node] == pytest.approx(sums[node] / visits[node])
        assert (visits[node], passes[node]) == (scored[node], scored[node])


def test_what_the_model_was_unsure_of_comes_with_the_turn() -> None:
    tree, _ = grow(3)
    turns = [node for node in range(len(tree)) if tree.node(node).kind == _core.TURN]
    for node in turns:
        seen = tree.node(node)
        assert seen.perplexity[2] == pytest.approx(math.exp(seen.entropy[2]), rel=1e-5)
        assert 1 < seen.perplexity[2] < 2
        assert math.isnan(seen.entropy[0])
    assert turns
