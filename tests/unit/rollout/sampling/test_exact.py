"""Token-exact mode over real sockets: trees hold what the engine was given and sampled, whatever drifts."""

from __future__ import annotations

import gc
import json
import weakref
from collections import Counter

import pytest
from exact_runs import grow, serving

from trunkline import _core
from trunkline._core import (
    PROMPT,
    ROOT,
    SAMPLED,
    TURN,
    TokenBuffer,
    drift_of,
    harvest,
    last_ids,
    pack_ragged,
    pack_tree,
)
from trunkline.agent import Agent, CompiledAgent
from trunkline.llm import messages
from trunkline.llm.request import Sampling
from trunkline.llm.token_ids.base import TokenMode
from trunkline.llm.token_ids.renderers import renderers
from trunkline.rollout.sampling.token_prompts import TokenPromptBuilder
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.tree.views import Tree
from trunkline.types import Task, Usage

APIS = ("chat", "completions", "generate")


def turns(tree: Tree) -> list[int]:
    return [node for node in range(len(tree.core)) if tree.core.node(node).kind == TURN]


def given(tree: Tree, node: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the model was given at a turn, as the tree has it, and what it sampled."""
    own = tuple(tree.core.tokens_of(node).ids)
    before = tuple(last_ids(tree.core, node))
    assert before[len(before) - len(own) :] == own
    return before[: len(before) - len(own)], own


def usage(trees: list[Tree]) -> Usage:
    total = Usage()
    for tree in trees:
        total += tree.usage
    return total


@pytest.mark.parametrize("api", APIS)
async def test_where_nothing_drifts_every_path_is_what_the_engine_saw(api: str, tasks: list[Task]):
    mode = TokenMode(api=api)
    async with serving(mode) as (llm, noting):
        trees = await grow(mode, llm, tasks)
    known = {given(tree, node) for tree in trees for node in turns(tree)}
    assert set(noting.sampled()) == known
    assert {rollout.termination for tree in trees for rollout in tree.rollouts} == {"answer"}
    total = usage(trees)
    assert (total.bridged, total.realigned, total.forked) == (0, 0, 0)
    for tree in trees:
        tree.core.check()
        assert tree.tokens.exact
        assert all(drift_of(tree.core, node) is None for node in turns(tree))


async def test_the_three_interfaces_grow_the_same_trees(tasks: list[Task]):
    digests, answers = [], []
    for api in APIS:
        mode = TokenMode(api=api)
        async with serving(mode) as (llm, _):
            trees = await grow(mode, llm, tasks)
        digests.append([tree.digest() for tree in trees])
        answers.append([rollout.answer for tree in trees for rollout in tree.rollouts])
    assert digests[0] == digests[1] == digests[2]
    assert any(answers[0])
    assert answers[0] == answers[1] == answers[2], "calls and answers are found in raw text too"


@pytest.mark.parametrize("api", ["completions", "generate"])
async def test_a_bridge_of_ids_never_renders_what_was_sampled(api: str, tasks: list[Task]):
    mode = TokenMode(api=api)
    async with serving(mode, noncanonical=0.3) as (llm, noting):
        trees = await grow(mode, llm, tasks)
    assert set(noting.sampled()) == {given(tree, node) for tree in trees for node in turns(tree)}
    assert usage(trees).bridged == 0, "nothing is rendered anew, so nothing drifts"
    for tree in trees:
        for rollout in tree.rollouts:
            path = [node.id for node in rollout.nodes]
            plain = [i for node in path for i in tree.core.tokens_of(node).ids]
            assert list(last_ids(tree.core, path[-1])) == plain


async def test_rollouts_that_share_some_of_their_observations_have_whole_prompts():
    def observe(core: _core.CoreTree, rollout: int, *texts: str) -> int:
        for place, text in enumerate(texts):
            leaf = core.observe(rollout, messages.tool(messages.call_id(0, place), text), 0, 1)
        return leaf

    core = _core.CoreTree()
    prompt = core.append(ROOT, PROMPT, b'{"role":"user","content":"two things?"}')
    compiled = CompiledAgent(Agent(model="sim-agent", sampling=Sampling(max_tokens=9)))
    bpe = default_bpe()
    async with serving(TokenMode(api="completions")) as (llm, _):
        exact = TokenPromptBuilder(TokenMode(api="completions"), renderers(TokenMode(api="completions"), llm.call))
        await exact.prompt(core, compiled, prompt, 1, 1)
        said = TokenBuffer(
            [*bpe.encode("let me see"), bpe.special["<|im_end|>"]], [-0.5] * (len(bpe.encode("let me see")) + 1)
        )
        prompts = []
        for draw, texts in enumerate([("same", "one"), ("same", "other"), ("same",), ("same", "one")]):
            rollout = core.open(prompt, [0, draw])
            core.turn(rollout, b"{}", 0, 0, 0, -1, -1, -1, 0, 0, None, None, said)
            made = await exact.prompt(core, compiled, observe(core, rollout, *texts), 1, 1)
            prompts.append(bpe.decode(json.loads(made.content)["prompt"]).decode())
    core.check()
    seen = [[text for text in ("same", "one", "other") if f"\n{text}\n" in prompt] for prompt in prompts]
    assert seen == [["same", "one"], ["same", "other"], ["same"], ["same", "one"]]
    assert all(prompt.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n") for prompt in prompts)
    assert all(prompt.count("let me see<|im_end|>\n<|im_start|>") == 1 for prompt in prompts)


async def test_an_agent_that_is_compiled_for_each_weight_version_is_let_go_of():
    core = _core.CoreTree()
    leaf = core.append(ROOT, PROMPT, b'{"role":"user","content":"who?"}')
    agent = Agent(model="sim-agent", sampling=Sampling(max_tokens=9))
    compiled, asked = [], []
    async with serving(TokenMode(api="completions")) as (llm, _):
        exact = TokenPromptBuilder(TokenMode(api="completions"), renderers(TokenMode(api="completions"), llm.call))
        for _ in range(400):
            one = CompiledAgent(agent)
            compiled.append(weakref.ref(one))
            asked.append((await exact.prompt(core, one, leaf, 1, 1)).content)
            await one.toolbox.close()
    del one
    gc.collect()
    assert len(set(asked)) == 1
    assert sum(ref() is not None for ref in compiled) < 300
    assert compiled[-1]() is not None


@pytest.mark.parametrize("api", APIS)
async def test_a_dialect_in_plain_text_is_as_exact(api: str, tasks: list[Task]):
    mode = TokenMode(api=api)
    async with serving(mode) as (llm, noting):
        trees = await grow(mode, llm, tasks, dialect="hermes")
    assert set(noting.sampled()) == {given(tree, node) for tree in trees for node in turns(tree)}
    assert sum(tree.usage.tools for tree in trees) > 0
    assert all(tree.tokens.exact for tree in trees)


# A bridge of ids renders nothing anew, so nothing drifts: the test above.
@pytest.mark.parametrize(
    ("api", "policy"), [("chat", "bridge"), *((api, policy) for api in APIS for policy in ("realign", "fork"))]
)
async def test_every_policy_fires_and_leaves_a_sound_tree(api: str, policy: str, tasks: list[Task]):
    mode = TokenMode(api=api, drift=policy)
    async with serving(mode, noncanonical=0.2) as (llm, noting):
        trees = await grow(mode, llm, tasks)
    total = usage(trees)
    fired = {"bridge": total.bridged, "realign": total.realigned, "fork": total.forked}
    assert fired.pop(policy) > 0
    assert set(fired.values()) == {0}
    known = {given(tree, node) for tree in trees for node in turns(tree)}
    if policy == "bridge":
        assert {own for _, own in noting.sampled()} == {own for _, own in known}
    else:
        assert set(noting.sampled()) == known
    for tree in trees:
        check(tree)


def check(tree: Tree) -> None:
    """Everything that holds of a tree under any policy."""
    core = tree.core
    core.check()
    copy = _core.CoreTree()
    copy.apply(core.delta() or b"")
    assert copy.digest() == core.digest()
    totals = tree.tokens
    assert totals.exact
    assert totals.flat >= totals.tree >= totals.longest > 0
    assert core.tokens()[3] == sum(len(core.tokens_of(node)) for node in turns(tree))
    columns = harvest([core])
    every = [*columns.leaves, *columns.segment_leaves]
    rows = pack_ragged(
        columns.parents, every, columns.offsets, columns.ids, columns.logprobs, columns.versions, columns.flags
    )
    drifts = Counter(found[0] for node in turns(tree) if (found := drift_of(core, node)))
    assert len(columns.segment_leaves) >= drifts["fork"]
    # What a row trains is what was sampled, and nothing that was sampled is trained twice in the rows of one rollout.
    paths = [[node.id for node in rollout.nodes] for rollout in tree.rollouts]
    own = set(turns(tree))
    sampled = [sum(len(core.tokens_of(node)) for node in path if node in own) for path in paths]
    trained: Counter[int] = Counter()
    for row, rollout in enumerate([*range(len(columns.leaves)), *columns.segment_rollouts]):
        start, end = rows.offsets[row], rows.offsets[row + 1]
        trained[rollout] += sum(rows.loss_mask[start:end])
    for rollout, count in trained.items():
        assert count <= sampled[rollout]
        if not drifts["realign"]:
            assert count == sampled[rollout]
    packed = pack_tree(
        columns.parents, every, columns.offsets, columns.ids, columns.logprobs, columns.versions, columns.flags
    )
    once = sum(packed.loss_mask)
    assert 0 < once <= sum(1 for flag in columns.flags if flag & SAMPLED)
