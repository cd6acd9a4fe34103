"""Forks inside a turn, over real sockets: what is sent, what is kept, and what the tree makes of the answer."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from exact_runs import grow, serving
from scripted import Say
from scripted import grow as play

from trunkline._core import PROMPT, ROOT, SAMPLED, TURN, CoreTree, Prefix, TokenBuffer, last_ids
from trunkline.errors import BadRequest, ConfigError, StrategyError
from trunkline.llm.cache import Cache
from trunkline.llm.token_ids.base import TokenMode
from trunkline.rollout.sampling import token_prompts as exact
from trunkline.rollout.types import KeptPrefix
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.store.derive import rows
from trunkline.strategies.base import Fork, View
from trunkline.strategies.chain import Chain
from trunkline.strategies.entropy_tree import EntropyTree
from trunkline.tree.views import Tree
from trunkline.types import Task

APIS = ("completions", "generate")
END = "<|im_end|>"


class Within:
    """One chain; then one turn of it, again from a token."""

    inside = True

    def __init__(self, turn: int, at: int, n: int) -> None:
        self.place, self.at, self.n = turn, at, n

    def rollouts(self) -> int:
        return 1 + self.n

    def start(self, view: View) -> list[Fork]:
        return [Fork()]

    def ended(self, view: View) -> list[Fork]:
        if view.tree.core.rollouts > 1:
            return []
        return [Fork(turns(view.tree, 0)[self.place], n=self.n, at=self.at)]


def turns(tree: Tree, number: int) -> list[int]:
    return [node.id for node in tree.rollouts[number].nodes if node.kind == TURN]


def ids(core: CoreTree, node: int) -> list[int]:
    return list(core.tokens_of(node).ids)


def prompts(calls: list) -> list[tuple[list[int], int]]:
    """Prompt and limit of each completion that was asked for."""
    asked = []
    for url, body, _ in calls:
        if url.endswith("/completions"):
            asked.append((body["prompt"], body["max_tokens"]))
        elif url.endswith("/generate"):
            asked.append((body["input_ids"], body["sampling_params"]["max_new_tokens"]))
    return asked


@pytest.mark.parametrize("api", APIS)
async def test_a_turn_is_gone_on_from_to_the_token(api: str, tasks: list[Task]):
    mode = TokenMode(api=api)
    async with serving(mode) as (llm, noting):
        (tree,) = await grow(mode, llm, tasks[:1], strategy=Within(0, 4, 5))
    core = tree.core
    (turn,) = turns(tree, 0)[:1]
    state = core.node(turn).parent
    before = list(last_ids(core, state))
    kept = core.tokens_of(turn)
    own = [path for path in (turns(tree, number)[0] for number in range(1, 6)) if path != turn]
    assert own, "five draws of the sim do not all say the same"
    for node in own:
        tokens = core.tokens_of(node)
        for column in ("ids", "logprobs", "versions", "flags"):
            assert list(getattr(tokens, column))[:4] == list(getattr(kept, column))[:4]
        assert all(flag & SAMPLED for flag in tokens.flags)
        assert core.node(node).parent == state
        text = default_bpe().decode(list(tokens.ids)).decode()
        assert tree_text(core, node) == text.removesuffix(END), "the message is read from the whole"
    assert (before + list(kept.ids)[:4], 2000 - 4) in prompts(noting.calls), "the whole turn has one limit"
    assert [rollout.path for rollout in tree.rollouts] == [(0, draw) for draw in range(6)]
    assert {rollout.subgroup for rollout in tree.rollouts} == {0}
    sampled = [tokens for _, tokens in noting.sampled()]
    assert tree.usage.generated == sum(map(len, sampled)), "what was kept is not generated again"
    assert tree.tokens.exact


class Everywhere:
    """One chain; then every turn of it, again from some tokens, counted from its end where below 0."""

    inside = True

    def __init__(self, *at: int) -> None:
        self.at = at

    def rollouts(self) -> int:
        return 20

    def start(self, view: View) -> list[Fork]:
        return [Fork()]

    def ended(self, view: View) -> list[Fork]:
        if view.tree.core.rollouts > 1:
            return []
        core = view.tree.core
        return [Fork(turn, at=at % len(ids(core, turn))) for turn in turns(view.tree, 0) for at in self.at]


async def test_a_branch_is_given_what_its_turn_was_given_whatever_has_drifted_since(tasks: list[Task]):
    mode = TokenMode(api="completions", drift="fork")
    async with serving(mode, noncanonical=0.2) as (llm, noting):
        trees = await grow(mode, llm, tasks, strategy=Everywhere(3))
    asked = [prompt for prompt, _ in prompts(noting.calls)]
    drifted = 0
    for tree in trees:
        core = tree.core
        for turn in turns(tree, 0):
            own = ids(core, turn)
            assert list(last_ids(core, turn))[: 3 - len(own)] in asked
            drifted += core.node(turn).context is not None
    assert drifted > 0


async def test_draws_of_one_state_that_keep_different_beginnings_are_asked_for_apart(tasks: list[Task]):
    mode = TokenMode(api="completions")
    async with serving(mode) as (llm, noting):
        (tree,) = await grow(mode, llm, tasks[1:2], strategy=Everywhere(2, 5, 9), max_turns=1)
    chain, *branches = (ids(tree.core, turns(tree, number)[0]) for number in range(4))
    asked = [prompt for prompt, _ in prompts(noting.calls)]
    for at, branch in zip((2, 5, 9), branches, strict=True):
        assert branch[:at] == chain[:at]
        assert asked[0] + chain[:at] in asked


@pytest.mark.parametrize("api", APIS)
async def test_a_call_that_was_begun_before_the_cut_is_run(api: str, tasks: list[Task]):
    mode = TokenMode(api=api)
    async with serving(mode) as (llm, _):
        (tree,) = await grow(mode, llm, tasks[1:2], strategy=Everywhere(-4))
    chain, *branches = tree.rollouts
    assert len(branches) == chain.turns > 1
    for number, branch in enumerate(branches):
        assert branch.nodes == chain.nodes or branch.turns > number + 1 or number == chain.turns - 1
        assert branch.termination == chain.termination == "answer"
        assert branch.usage.tools >= (number < chain.turns - 1), "its own call at least"


def tree_text(core: CoreTree, node: int) -> str:
    return msgspec.json.decode(core.message(node))["content"]


@pytest.mark.parametrize("api", APIS)
async def test_an_entropy_tree_has_its_leaves_and_every_branch_its_beginning(api: str, tasks: list[Task]):
    mode = TokenMode(api=api)
    strategy = EntropyTree(chains=2, points=2, rounds=2, samples=2)
    async with serving(mode) as (llm, noting):
        trees = await grow(mode, llm, tasks, strategy=strategy)
    given = {tuple(prompt) for prompt, _ in prompts(noting.calls)}
    for tree in trees:
        tree.core.check()
        assert len(tree.rollouts) == 2 * (1 + 2 * 2 * 2)
        assert {rollout.termination for rollout in tree.rollouts} <= {"answer", "max_turns"}
        for rollout in tree.rollouts:
            assert list(last_ids(tree.core, rollout.leaf.id)), "every path has its ids"
    engine = sum(len(tokens) for _, tokens in noting.sampled())
    assert sum(tree.usage.generated for tree in trees) == engine
    assert len(given) > 3 * 2, "more than the chains were asked for"
    flat, whole = (sum(getattr(tree.tokens, name) for tree in trees) for name in ("flat_generated", "tree_generated"))
    shared = sum(unique(tree) for tree in trees)
    # What is kept stands in two turns and was generated once. There is less than was sampled where two draws began
    # alike by chance.
    assert whole == shared <= engine < flat
    assert whole < sum(tree.core.tokens()[3] for tree in trees), "nodes have it twice"
    for tree in trees:
        _, listed = rows(tree.core)
        assert [row.length for row in listed] == [rollout.generated for rollout in tree.rollouts]
        assert sum(row.length for row in listed) == tree.tokens.flat_generated, "what was kept is on the path, too"


def unique(tree: Tree) -> int:
    """Generated tokens, what paths share counted once, to the token."""
    index = Prefix()
    for rollout in tree.rollouts:
        # What a rollout ended with may be no prompt of anything, and then nobody knows its ids.
        parts = [tokens for node in rollout.nodes if (tokens := tree.core.tokens_of(node.id)) is not None]
        ids, flags = ([value for part in parts for value in getattr(part, name)] for name in ("ids", "flags"))
        index.insert(index.space("task"), TokenBuffer(ids, None, None, flags))
    return index.reuse().unique_generated


async def test_picks_of_a_real_tree_are_the_least_likely_tokens(tasks: list[Task]):
    mode = TokenMode(api="completions")
    async with serving(mode) as (llm, _):
        (tree,) = await grow(mode, llm, tasks[:1], strategy=Chain(2))
    forks = list(EntropyTree(chains=2, points=3).ended(View(tree, [0, 1], 5)))
    for number in (0, 1):
        tokens = [
            (logprob, node, place)
            for node in turns(tree, number)
            for place, logprob in enumerate(tree.core.tokens_of(node).logprobs)
            if place
        ]
        found = [(fork.point, fork.at) for fork in forks if fork.subgroup == number]
        assert found == [(node, place) for _, node, place in sorted(tokens)[:3]]


async def test_the_same_run_grows_the_same_tree_and_asks_a_cache_first(tasks: list[Task], tmp_path):
    mode = TokenMode(api="completions")
    strategy = EntropyTree(chains=2, points=1, samples=3)
    digests, calls = [], []
    for _ in range(2):
        async with serving(mode) as (llm, noting):
            with_cache = Cache(str(tmp_path / "cache"))
            (tree,) = await grow(mode, llm, tasks[:1], strategy=strategy, cache=with_cache)
            with_cache.close()
        digests.append(tree.digest())
        calls.append(len(prompts(noting.calls)))
    assert digests[0] == digests[1]
    assert calls[0] > 0 == calls[1]


async def test_a_continuation_has_the_law_of_a_whole_turn_with_that_beginning(tasks: list[Task]):
    mode = TokenMode(api="completions")
    async with serving(mode) as (llm, _):
        (wholes,) = await grow(mode, llm, tasks[1:2], strategy=Chain(300), max_turns=1)
        chains = [ids(wholes.core, turns(wholes, number)[0]) for number in range(300)]
        # To where the two turns that are said most often part: there a choice is made that nothing has told yet.
        often = [list(kind) for kind, _ in Counter(map(tuple, chains)).most_common(2)]
        at = next(place for place, pair in enumerate(zip(*often, strict=False)) if len(set(pair)) > 1)
        assert chains[0] in often
        (tree,) = await grow(mode, llm, tasks[1:2], strategy=Within(0, at, 300), max_turns=1)
    begun = ids(tree.core, turns(tree, 0)[0])[:at]
    whole = Counter(tuple(chain) for chain in chains if chain[:at] == begun)
    rest = Counter(tuple(ids(tree.core, turns(tree, number)[0])) for number in range(1, 301))
    n, m = whole.total(), rest.total()
    assert n > 60
    # Two samples of one law: the sum over k kinds of (a/n - b/m)^2 / ((a + b) / (n + m) (1/n + 1/m)) is chi-square.
    kinds = [kind for kind, count in (whole + rest).items() if count >= 10]
    assert len(kinds) > 1
    terms = [
        (whole[kind] / n - rest[kind] / m) ** 2 / ((whole[kind] + rest[kind]) / (n + m) * (1 / n + 1 / m))
        for kind in kinds
    ]
    assert sum(terms) < len(kinds) + 4 * (2 * len(kinds)) ** 0.5


class Letters:
    """A tokenizer whose every byte is a token."""

    async def decode(self, tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")


class Others(Letters):
    """One that writes what the server does not."""

    async def decode(self, tokens: list[int]) -> str:
        return "?" + await super().decode(tokens)


class Broken(Letters):
    """One that takes no id."""

    async def decode(self, tokens: list[int]) -> str:
        raise ConfigError("no such id")


def spelled(text: str) -> tuple[CoreTree, int]:
    core = CoreTree()
    prompt = core.append(ROOT, PROMPT, b"{}", 0, TokenBuffer([1]))
    number = core.open(prompt, (0, 0))
    message = msgspec.json.encode({"role": "assistant", "content": text})
    tokens = list(text.encode())
    node = core.turn(
        number, message, 0, 0, 0, 1, 0, len(tokens), 0, 0, None, None, TokenBuffer(tokens, [-1.0] * len(tokens))
    )
    return core, node


@pytest.mark.parametrize(
    ("at", "kept"), [(1, "a"), (2, "a"), (3, "aé"), (4, "aé€"[:2]), (5, "aé"), (6, "aé€"), (7, "aé€"), (9, "aé€")]
)
async def test_what_begins_inside_a_character_goes_back_to_its_first_token(at: int, kept: str):
    # a é é € € € 😀 😀 😀 😀 b
    core, turn = spelled("aé€😀b")
    found, text = await exact._beginning(core, KeptPrefix(turn, at), Letters())
    assert (bytes(found).decode(), text) == (kept, kept)


async def test_a_tokenizer_that_is_not_the_servers_ends_the_rollout_and_not_the_run():
    core, turn = spelled("abc")
    with pytest.raises(BadRequest, match="is not how its text begins"):
        await exact._beginning(core, KeptPrefix(turn, 2), Others())
    with pytest.raises(BadRequest, match="no such id"):
        await exact._beginning(core, KeptPrefix(turn, 2), Broken())


async def test_a_server_that_does_not_decode_fails_the_branches_alone(
    tasks: list[Task], monkeypatch: pytest.MonkeyPatch
):
    async def refuses(*_: object) -> str:
        raise ConfigError("the server does not decode these ids")

    monkeypatch.setattr("trunkline.llm.token_ids.renderers.ServerRenderer.decode", refuses)
    mode = TokenMode(api="completions")
    async with serving(mode) as (llm, _):
        (tree,) = await grow(mode, llm, tasks[:1], strategy=Within(0, 3, 2))
    assert [rollout.termination for rollout in tree.rollouts] == ["answer", "bad_request", "bad_request"]
    assert "cannot be read" in tree.rollouts[1].error.message


async def test_where_prompts_are_messages_a_fork_inside_a_turn_ends_the_task_with_its_reason(tasks: list[Task]):
    with pytest.raises(ExceptionGroup) as caught:
        await play(Within(0, 1, 1), lambda conversation, seed: Say("yes", final=True))
    assert caught.group_contains(
        StrategyError, match="Within forks inside a turn, which needs an endpoint that goes on"
    )
