"""Traces of the real package verifiers: its validators, its wire form, and its own message graph."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exact_runs import grow, serving
from groves import D6, grove
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trees import message, token_trees

import trunkline as tl
from trunkline._core import PROMPT
from trunkline.errors import UsageError
from trunkline.llm.token_ids.base import TokenMode
from trunkline.sim.tools import CORPUS_VARIABLE
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.train import prime, verifiers
from trunkline.tree.views import Tree

vf = pytest.importorskip("verifiers.v1")
pytestmark = pytest.mark.trainers


def on_the_wire(trace: Any) -> Any:
    return vf.WireTrace.model_validate_json(trace.model_dump_json(context={"float_decimals": None}))


@given(token_trees(drifts=False, drops=False), st.sampled_from([None, "dr_grpo"]))
@settings(max_examples=40)
def test_a_tree_comes_back_from_the_wire_with_its_digest(tree: Tree, estimator: str | None):
    for trace in verifiers.traces([tree], estimator=estimator):
        read = on_the_wire(trace)
        assert read.nodes == trace.nodes
        for given_trace in (trace, read, json.loads(trace.model_dump_json())):
            back = verifiers.tree_of(given_trace)
            back.core.check()
            assert back.digest() == tree.digest()


def samples_of(trace: Any) -> list[tuple[list[Any], ...]]:
    """The samples of a trace as its consumers make them: one a branch, each sampled node trained in the first."""
    found, trained = [], set()
    for branch in trace.branches:
        fresh = [node for node in branch.nodes if any(node.mask) and id(node) not in trained]
        trained |= {id(node) for node in fresh}
        mask = [shown and node in fresh for node in branch.nodes for shown in node.mask]
        if any(mask):
            weights = branch.loss_weights("rl")
            found.append((branch.token_ids, mask, weights, branch.advantages))
    return found


def masked(mask: list[bool], values: list[float]) -> list[float]:
    return [value for shown, value in zip(mask, values, strict=True) if shown]


@given(token_trees(), token_trees(id="r"))
@settings(max_examples=40)
def test_branches_train_what_the_samples_of_prime_train(one: Tree, other: Tree):
    trees = [one, other]
    traces = [sample for trace in verifiers.traces(trees, estimator="dr_grpo") for sample in samples_of(trace)]
    samples = msgspec.msgpack.decode(prime.training_samples(trees, estimator="dr_grpo"))
    assert len(traces) == len(samples)
    for (ids, mask, weights, advantages), sample in zip(traces, samples, strict=True):
        assert (ids, mask) == (sample[0], sample[1])
        assert masked(mask, weights) == masked(mask, sample[9])
        assert masked(mask, advantages) == masked(mask, sample[12])


async def test_a_run_over_sockets_is_one_trace_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_world(make_world(3, 400, 60), tmp_path)
    monkeypatch.setenv(CORPUS_VARIABLE, str(tmp_path / "corpus.jsonl"))
    tasks = load_tasks(str(tmp_path / "questions.jsonl"), limit=2)
    async with serving(TokenMode()) as (llm, noting):
        trees = await grow(TokenMode(), llm, tasks, strategy=TreeGRPO(2, 2, 1))
    for tree in trees:
        for rollout in tree.rollouts:
            tree.core.score(rollout.id, rollout.id / 4)
    asked = {given + said for given, said in noting.sampled()}
    for tree, trace in zip(trees, verifiers.traces(trees, estimator="tree_grpo"), strict=True):
        read = on_the_wire(trace)
        assert verifiers.tree_of(read).digest() == tree.digest()
        assert read.usage is not None
        assert read.num_turns == sum(node.kind == tl._core.TURN for node in tree.nodes)
        for branch in read.branches:
            end = max(place for place, shown in enumerate(branch.sampled_mask, 1) if shown)
            assert tuple(branch.token_ids[:end]) in asked, "the engine was given, and sampled, these ids"
            values = zip(branch.sampled_mask, branch.logprobs, strict=True)
            assert all(value < 0 if shown else value == 0 for shown, value in values)


def test_an_episode_holds_a_trace_and_its_group():
    (episode,) = verifiers.episodes([grove(D6)], env="maths", estimator="dr_grpo")
    assert (episode.env.name, episode.group.id, episode.ok, len(episode.traces)) == ("maths", "q", True, 1)
    read = vf.WireEpisode.model_validate_json(episode.model_dump_json())
    assert verifiers.tree_of(read.traces[0]).digest() == grove(D6).digest()
    assert read.traces[0].reward == 0.5


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (message("developer", "what?"), r'task "q" can be no trace: verifiers refuses .*nodes\.0\.message.*developer'),
        (b'{"role":"user","content":[{"type":"input_audio"}]}', r"nodes\.0\.message"),
        (b'{"role":"user","content":7}', r"nodes\.0\.message\.user\.content"),
        (b"{}", r"nodes\.0\.message"),
        (b'{"role":"assistant","tool_calls":[7]}', r"tool_calls"),
    ],
)
def test_a_message_that_verifiers_has_no_form_for_is_refused(words: bytes, text: str):
    tree = Tree(tl.Task.ask("what?", id="q"))
    tree.core.open(tree.core.append(0, PROMPT, words), [0, 0])
    with pytest.raises(UsageError, match=text):
        list(verifiers.traces([tree]))


def committed() -> Any:
    """A chain made by the package's own message graph."""
    trace = vf.WireTrace(
        task=vf.TraceTask(type="T", data=vf.WireTaskData(idx=3, prompt="what?")),
        agent={"config": {"model": "m"}},
        is_completed=True,
        ok=True,
        rewards={"right": vf.Reward(score=1.0)},
    )
    prompt = [vf.UserMessage(content="what?")]
    for turn, (given_ids, said) in enumerate([([1, 2], [3, 4]), ([1, 2, 3, 4, 5, 6], [7])]):
        reply = vf.AssistantMessage(content=f"say {turn}")
        tokens = vf.TurnTokens(
            prompt_ids=given_ids,
            completion_ids=said,
            completion_logprobs=[-0.5] * len(said),
            message_spans=[(0, 1)] if turn == 0 else [None, None, (5, 6)],
        )
        response = vf.Response(
            id="r", created=0, model="m", message=reply, finish_reason="stop", tokens=tokens, usage=None
        )
        pending = vf.graph.prepare_turn(trace, prompt)
        trace.calls.append(vf.ModelCall(node=pending.commit(response), model="m", finish_reason="stop"))
        prompt = [*prompt, reply, vf.ToolMessage(content="seen", tool_call_id="c")]
    return trace


def test_a_trace_of_the_package_itself_is_a_tree():
    trace = committed()
    tree = verifiers.tree_of(trace)
    (branch,) = trace.branches
    assert branch.token_ids == [1, 2, 3, 4, 5, 6, 7]
    (rollout,) = tree.rollouts
    assert (rollout.answer, rollout.reward, rollout.turns) == ("say 1", 1.0, 2)
    assert [token for node in rollout.nodes for token in tree.core.tokens_of(node.id).ids] == branch.token_ids
    assert tree.tokens.exact
    (again,) = verifiers.traces([tree])
    assert again.branches[0].token_ids == branch.token_ids
    assert [again.branches[0].sampled_mask, again.branches[0].logprobs] == [branch.sampled_mask, branch.logprobs]
    assert verifiers.tree_of(again).digest() == tree.digest()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda nodes: setattr(nodes[0], "parent", 2), "node 0: parent 2 is no node before it"),
        (lambda nodes: setattr(nodes[2], "parent", 2), "node 2: parent 2 is no node before it"),
        (lambda nodes: setattr(nodes[1], "mask", [True]), "node 1: the mask has 1 elements for 3 token ids"),
        (lambda nodes: setattr(nodes[1], "token_ids", [1, 2, 2**40]), "token_ids"),
        (lambda nodes: setattr(nodes[1], "logprobs", [math.nan, -0.5]), "node 1: a log-probability is not finite"),
        (lambda nodes: setattr(nodes[1], "logprobs", "ab"), "logprobs"),
        (lambda nodes: setattr(nodes[1], "message", None), "message"),
        (lambda nodes: nodes.append(vf.MessageNode(message=vf.UserMessage(content=""))), "several branches"),
    ],
)
def test_a_damaged_trace_is_one_clear_error(change: Any, text: str):
    trace = committed()
    change(trace.nodes)
    with pytest.raises(UsageError, match=text):
        verifiers.tree_of(trace)
