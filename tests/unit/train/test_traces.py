"""Traces of verifiers without verifiers: a package that validates nothing stands in for it."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import doc_pages
import pytest
from groves import D6, Try, grove
from hypothesis import given, settings
from hypothesis import strategies as st
from old_runs import names, unpack
from places import ROOT
from token_trees import message, token_trees

import trunkline as tl
from trunkline._core import MESSAGE, PROMPT, SAMPLED, TokenBuffer, drift
from trunkline.errors import ConfigError, UsageError
from trunkline.scoring import notes
from trunkline.store.reader import RunReader
from trunkline.train import verifiers
from trunkline.tree.views import Tree


@pytest.fixture(scope="module", autouse=True)
def package() -> Iterator[None]:
    """A package whose traces are the mappings that it was given, as JSON writes them."""
    api = ModuleType("verifiers.v1")
    api.WireTrace = SimpleNamespace(model_validate=lambda wire: {"id": "one", **json.loads(json.dumps(wire))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "verifiers", ModuleType("verifiers"))
        patch.setitem(sys.modules, "verifiers.v1", api)
        yield


def trace(tree: Tree, **options: Any) -> Any:
    (found,) = verifiers.traces([tree], **options)
    return found


def branches(found: dict[str, Any]) -> list[list[dict[str, Any]]]:
    nodes = found["nodes"]
    inner = {node["parent"] for node in nodes}
    paths = []
    for place in range(len(nodes)):
        path: list[dict[str, Any]] = []
        above: int | None = place if place not in inner else None
        while above is not None:
            path.insert(0, nodes[above])
            above = nodes[above]["parent"]
        paths += [path] if path else []
    return paths


@given(token_trees(drifts=False, drops=False), st.sampled_from([None, "dr_grpo"]))
@settings(max_examples=60)
def test_a_tree_comes_back_with_its_digest(tree: Tree, estimator: str | None):
    back = verifiers.tree_of(trace(tree, estimator=estimator))
    back.core.check()
    assert back.digest() == tree.digest()
    assert back.task == tree.task
    assert [one.note for one in back.rollouts] == [one.note for one in tree.rollouts]
    assert [one.error for one in back.rollouts] == [one.error for one in tree.rollouts]
    assert back.tokens.exact == tree.tokens.exact
    if estimator is None:
        assert back.tokens == tree.tokens
        said, again = (list(tl.train.turns([one], estimator="dr_grpo", shared="once")) for one in (tree, back))
        # Reasoning, finish reasons and versions of weights come back, too; nodes may have other numbers.
        assert [(s.reply, s.aside, s.advantage, s.weights) for s in said] == [
            (s.reply, s.aside, s.advantage, s.weights) for s in again
        ]


@given(token_trees(ids=False, drops=False))
@settings(max_examples=30)
def test_a_tree_without_ids_gives_a_trace_for_evaluation(tree: Tree):
    found = trace(tree, estimator="dr_grpo")
    assert not any(
        node.get(name) for node in found["nodes"] for name in ("token_ids", "mask", "logprobs", "advantages")
    )
    assert verifiers.tree_of(found).digest() == tree.digest()


@given(token_trees())
@settings(max_examples=60)
def test_branches_are_the_samples_and_credit_sums_to_that_of_rollouts(tree: Tree):
    found = list(verifiers.traces([tree], estimator="dr_grpo"))
    values = [turn for turn in tl.train.turns([tree], estimator="dr_grpo", shared="repeat") if turn.trained]
    for nodes in (one["nodes"] for one in found):
        for place, node in enumerate(nodes):
            assert node["parent"] is None or node["parent"] < place
            assert len(node["mask"]) == len(node["token_ids"])
            assert len(node["logprobs"]) == sum(node["mask"])
            credit = node.get("advantages")
            assert (credit is None) == ("loss_weights" not in node)
            if credit is not None:
                assert len(credit) == sum(node["mask"])
                assert {weight > 0 for weight in node["loss_weights"]["rl"]} <= {True, False}
                assert [weight > 0 for weight in node["loss_weights"]["rl"]] == node["mask"]
    if not any(tree.core.node(node.id).context is not None for node in tree.nodes):
        sizes = {}
        for node in tree.nodes[1:]:
            tokens = tree.core.tokens_of(node.id)
            sizes[node.id] = 0 if tokens is None else sum(flag == SAMPLED for flag in tokens.flags)
        total = sum(
            (node["advantages"][0] if node["advantages"] else 0.0) * sum(node["loss_weights"]["rl"])
            for one in found
            for node in one["nodes"]
            if "advantages" in node
        )
        assert total == pytest.approx(math.fsum(turn.advantage * sizes[turn.node] for turn in values), abs=1e-9)


def test_an_unscored_tree_has_no_reward_and_a_mean_otherwise():
    assert trace(grove([Try(["A"]), Try(["B"])]))["rewards"] == {"reward": None}
    found = trace(grove([Try(["A"], 1.0), Try(["B"], 0.0), Try(["C"])]))
    assert found["rewards"] == {"reward": {"score": 0.5}}
    assert (found["is_completed"], found["ok"], found["stop_condition"]) == (True, True, "answer")
    broken = trace(grove([Try(["A"], ended="llm_error"), Try(["B"], ended="lost")]))
    assert (broken["ok"], broken["stop_condition"], broken["rewards"]) == (False, None, {"reward": None})


def test_dropped_rollouts_are_left_out_and_masked_ones_have_no_mask():
    tree = chains([1], [2], [3])
    notes.note(tree.core, 0, tl.filters.Verdict("f", "drop"))
    notes.note(tree.core, 1, tl.filters.Verdict("f", "mask"))
    _, masked, trained = trace(tree, estimator="dr_grpo")["nodes"]
    assert (masked["token_ids"], masked["mask"], masked["logprobs"]) == ([2], [False], [])
    assert "advantages" not in masked
    assert (trained["token_ids"], trained["mask"], trained["loss_weights"]) == ([3], [True], {"rl": [1.0]})
    assert [node["mask"] for node in trace(tree)["nodes"]] == [[False, False], [True], [True]]


def chains(*said: list[int], context: Any = None) -> Tree:
    """Chains of one turn below a prompt."""
    tree = Tree(tl.Task.ask("what?", id="q"))
    core = tree.core
    prompt = core.append(0, PROMPT, message("user", "what?"))
    core.tokenise(prompt, TokenBuffer([9, 9]))
    for draw, ids in enumerate(said):
        rollout = core.open(prompt, [0, draw], draw)
        tokens = TokenBuffer(ids, [-0.5] * len(ids))
        sent = context(core) if context else None
        core.turn(rollout, message("assistant", f"{draw}"), 0, 0, 0, 2, 0, 1, 0, 0, None, sent, tokens)
        core.close(rollout, "answer", f"{draw}")
        core.score(rollout, float(draw))
    return tree


@pytest.mark.parametrize("policy", ["fork", "realign"])
def test_a_turn_whose_prompt_drifted_ends_a_branch_of_its_own(policy: str):
    tree = chains([1], [2], context=lambda core: drift(core, policy, 1, TokenBuffer([5])))
    found = trace(tree, estimator="dr_grpo")
    asked = [path for path in branches(found) if path[-1]["sampled"]]
    for path, last in zip(asked, (1, 2), strict=True):
        assert [node["message"]["role"] for node in path] == ["user", "assistant"]
        assert [token for node in path for token in node["token_ids"]] == [9, 5, last]
        assert path[-1]["mask"] == [False, False, True]
    with pytest.raises(UsageError, match=r'trace "one" can be no tree: node \d repeats a message for a turn'):
        verifiers.tree_of(found)


def test_a_turn_asked_with_other_messages_ends_a_branch_of_these():
    def asked(core: Any) -> int:
        return core.context([core.fragment(message("system", "critic")), core.fragment(message("user", "on"))])

    found = trace(chains([1], [2], context=asked), estimator="dr_grpo")
    said = [[node["message"]["content"] for node in path] for path in branches(found)]
    assert said == [["what?"], ["critic", "on", "0"], ["critic", "on", "1"]]
    assert not any("token_ids" in node for node in found["nodes"])


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="scale: options of an estimator, and none is given"):
        verifiers.traces([grove(D6)], scale="none")
    with pytest.raises(ConfigError, match="env"):
        verifiers.episodes([grove(D6)], env=3)
    with pytest.raises(ConfigError, match="censored"):
        verifiers.traces([grove(D6)], censored="drop")
    cut = grove([Try(["A"], 1.0), Try(["B"], ended="censored")])
    with pytest.raises(UsageError, match="censored='mask'"):
        verifiers.traces([cut], estimator="dr_grpo")
    assert len(trace(cut)["nodes"]) == 3


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(ConfigError, match=r"needs an extra \(.*\): pip install 'trunkline\[verifiers\]'"):
        verifiers.traces([grove(D6)])


# Traces of other programs

FOREIGN: dict[str, Any] = {
    "id": "abc",
    "task": {"type": "Math", "data": {"idx": 4, "prompt": "1+1?", "system_prompt": "Think."}},
    "agent": {"config": {}, "name": "solver"},
    "nodes": [
        {"message": {"role": "system", "content": "Think."}, "token_ids": [1], "mask": [False]},
        {"parent": 0, "message": {"role": "user", "content": [{"type": "text", "text": "1+1?"}]}},
        {
            "parent": 1,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c", "type": "function", "name": "calc", "arguments": "{}"}],
            },
            "sampled": True,
            "token_ids": [2, 3, 4],
            "mask": [False, True, True],
            "logprobs": [-0.5, -0.25],
        },
        {"parent": 2, "message": {"role": "tool", "tool_call_id": "c", "content": "2"}},
        {"parent": 3, "message": {"role": "assistant", "content": "two"}, "sampled": True},
    ],
    "calls": [
        {
            "node": 2,
            "model": "m",
            "finish_reason": "tool_calls",
            "usage": {"prompt_tokens": 2, "cached_input_tokens": 1, "completion_tokens": 2},
        }
    ],
    "rewards": {"right": {"score": 1.0, "weight": 2.0}, "short": {"score": 0.5}},
    "is_completed": True,
    "ok": True,
    "stop_condition": "agent_completed",
}


def changed(**fields: Any) -> dict[str, Any]:
    return copy.deepcopy(FOREIGN) | fields


def test_a_chain_of_another_program_is_one_rollout():
    tree = verifiers.tree_of(FOREIGN)
    tree.core.check()
    (rollout,) = tree.rollouts
    assert (rollout.reward, rollout.answer, rollout.termination) == (2.5, "two", "answer")
    assert [node.kind.name for node in rollout.nodes] == ["PROMPT", "PROMPT", "TURN", "OBSERVATION", "TURN"]
    assert tree.task == tl.Task(
        id="4", messages=[{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1?"}]
    )
    call = rollout.nodes[2]
    assert call.message["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "calc", "arguments": "{}"}}
    ]
    assert (call.agent, call.namespace, call.finish, call.aside) == ("solver", "m", "tool_calls", "hm")
    assert (call.prompt_tokens, call.generated_tokens) == (3, 3)
    tokens = tree.core.tokens_of(call.id)
    assert tokens is not None
    assert (list(tokens.ids), list(tokens.flags), list(tokens.logprobs)) == ([2, 3, 4], [0, 1, 1], [0.0, -0.5, -0.25])
    assert rollout.usage.cached == 1


@pytest.mark.parametrize(
    ("fields", "termination", "reward"),
    [
        ({"rewards": {"right": {"score": 1.0}, "short": None}}, "answer", math.nan),
        ({"rewards": {}}, "answer", math.nan),
        ({"is_completed": False}, None, math.nan),
        ({"stop_condition": "max_turns"}, "max_turns", 2.5),
        ({"stop_condition": "max_total_tokens"}, "max_tokens", 2.5),
        ({"ok": False, "stop_condition": "provider_error"}, "llm_error", math.nan),
        ({"ok": False, "errors": [{"type": "TaskError", "message": "no box"}]}, "tool_error", math.nan),
    ],
)
def test_how_a_trace_ended(fields: dict[str, Any], termination: str | None, reward: float):
    (rollout,) = verifiers.tree_of(changed(**fields)).rollouts
    assert rollout.termination == termination
    assert rollout.reward == reward or (math.isnan(rollout.reward) and math.isnan(reward))
    assert (rollout.error is None) == ("errors" not in fields)


def with_node(place: int, **fields: Any) -> dict[str, Any]:
    found = changed()
    found["nodes"][place] |= fields
    return found


def with_extra(**fields: Any) -> dict[str, Any]:
    found = trace(grove(D6))
    found["info"]["trunkline"] |= fields
    return found


def with_rollout(**fields: Any) -> dict[str, Any]:
    found = trace(grove(D6))
    found["info"]["trunkline"]["rollouts"][1] |= fields
    return found


def repeated(rollouts: int, size: int) -> dict[str, Any]:
    """A trace with many rollouts along one path, each of which would be grown."""
    nodes = [{"parent": place - 1 if place else None, "message": {"role": "user"}} for place in range(size)]
    listed = [{"point": 0, "leaf": size - 1, "path": [0, draw]} for draw in range(rollouts)]
    return changed(nodes=nodes, info={"trunkline": {"nodes": [[1]] + [[4]] * (size - 1), "rollouts": listed}})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: 3, "no trace of verifiers: Expected `object`, got `int`"),
        (dict, "missing required field `id`"),
        (lambda: changed(nodes=[]), 'trace "abc" can be no tree: it has no messages'),
        (lambda: with_node(2, parent=0), "it has several branches, and no info"),
        (lambda: with_node(0, parent=0), "node 0: parent 0 is no node before it"),
        (lambda: with_node(2, parent=4), "node 2: parent 4 is no node before it"),
        (lambda: with_node(2, parent=-1), "node 2: parent -1 is no node before it"),
        (lambda: with_node(2, parent=10**30), r"nodes\[2\]\.parent|no node before it"),
        (lambda: with_node(2, mask=[True]), "node 2: the mask has 1 elements for 3 token ids"),
        (lambda: with_node(2, token_ids=[1, 2, 2**32]), r"\.token_ids"),
        (lambda: with_node(2, token_ids=[1, 2, -1]), r"\.token_ids"),
        (lambda: with_node(2, token_ids=[1, 2, math.nan]), r"\.token_ids"),
        (lambda: with_node(2, logprobs=[-0.5]), "node 2: there are 1 log-probabilities for 2 tokens in the mask"),
        (lambda: with_node(2, logprobs=[-0.5, math.nan]), "node 2: a log-probability is not finite"),
        (lambda: with_node(2, logprobs=[-0.5, -math.inf]), "node 2: a log-probability is not finite"),
        (lambda: with_node(2, logprobs=[-0.5, -1e300]), "log-probability of token 2 is -inf"),
        (lambda: with_node(3, sampled=True), "node 3: it is sampled, and its role is tool, not assistant"),
        (lambda: with_node(0, mask=[True]), "node 0: the mask has tokens of a message that no model sampled"),
        (lambda: with_node(0, message={"role": "developer", "content": ""}), r"\.message\.role"),
        (lambda: with_node(0, message={"role": "user", "content": "\ud800"}), "surrogates not allowed"),
        (lambda: changed(rewards={"right": {"score": math.nan}}), "its rewards do not add up to a finite number"),
        (lambda: changed(rewards={"right": {"score": 1e308, "weight": 1e308}}), "its rewards do not add up"),
        (lambda: changed(rewards={"right": {"score": 1e308}, "left": {"score": 1e308}}), "its rewards do not add up"),
        (lambda: with_node(0, message={"role": "\ud800"}), "surrogates not allowed"),
        (lambda: changed(id=7), r"\$\.id"),
        (lambda: changed(info={"trunkline": 3}), 'info."trunkline".*Expected `object`'),
        (lambda: with_extra(nodes=[]), "has 0 nodes, and the trace 13"),
        (lambda: with_extra(nodes=[[9]] * 13), "node 0: .* says kind 9, which does not fit the node"),
        (lambda: with_extra(nodes=[[1]] * 13), "node 1: .* says kind 1, which does not fit the node"),
        (lambda: with_extra(nodes=[[1, "", "", "", "[]"], *[[2]] * 12]), "says kind 2|does not start with"),
        (lambda: with_rollout(leaf=99), "rollout 1 has the leaf 99, which is no node"),
        (lambda: with_rollout(point=-2), "rollout 1 has the point -2, which is no node"),
        (lambda: with_rollout(point=5), r"rollout 1 forks behind node \d, which is of no rollout before it"),
        (lambda: with_rollout(point=-1), "node 0 is of the prompt, and a rollout grows past it"),
        (lambda: with_rollout(path=[0, 0]), "path"),
        (lambda: repeated(1500, 1000), "its rollouts are 1498500 nodes long together, .* for 1000 nodes"),
        (lambda: with_rollout(path=[0, 2**40]), "path"),
        (lambda: with_rollout(termination="bored"), "bored"),
        (lambda: with_rollout(termination=None), "rollout 1"),
        (lambda: with_rollout(reward=math.inf), "reward"),
    ],
)
def test_a_hostile_trace_is_one_clear_error(make: Any, text: str):
    with pytest.raises(UsageError, match=text) as caught:
        verifiers.tree_of(make())
    assert str(caught.value).isprintable()


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(), st.text(max_size=3), st.just([]), st.just({})
)


@given(st.data())
@settings(max_examples=150)
def test_a_trace_with_a_foreign_value_is_a_tree_or_a_usage_error(data: st.DataObject):
    found = data.draw(st.sampled_from([changed(), trace(grove(D6)), trace(chains([1], [1, 2]))]))
    here: Any = found
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(here[key], dict | list) and here[key] and data.draw(st.integers(0, 4)):
            here = here[key]
        else:
            break
    here[key] = data.draw(JUNK)
    with contextlib.suppress(UsageError):
        verifiers.tree_of(found).core.check()


@pytest.mark.parametrize("name", names())
def test_trees_of_recorded_runs_come_back_or_are_refused(name: str, tmp_path: Path):
    for tree in RunReader.open(unpack(name, tmp_path)):
        asked = any(tree.core.node(node.id).context is not None for node in tree.nodes)
        for found in verifiers.traces([tree]):
            if asked:
                with pytest.raises(UsageError, match="repeats a message for a turn whose prompt was not its path"):
                    verifiers.tree_of(found)
            else:
                assert verifiers.tree_of(found).digest() == tree.digest()


def test_the_snippet_of_the_how_to_runs():
    page = (ROOT / "docs" / "how-to" / "trainers.md").read_text("utf-8")
    (snippet,) = [block.text for block in doc_pages.blocks(page) if "prime.training_samples" in block.text]
    names: dict[str, Any] = {"run": [chains([1], [2]), chains([1], [3])]}
    exec(snippet.replace('run = tl.open("0.run")\n', ""), names)
    assert names["tree"].digest() == names["run"][0].digest()
    assert len(names["traces"]) == 2
    assert names["data"]


def test_messages_put_in_behind_a_state_come_back():
    tree = grove(D6)
    core = tree.core
    core.close(core.fork(core.append(1, MESSAGE, message("user", "on")), 1), "cancelled")
    assert verifiers.tree_of(trace(tree)).digest() == tree.digest()
