"""How sure a rollout is: by log-probabilities, entropies, its own words, its reward and the states it came through."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from groves import D6, Try, grove, said
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import token_of

from trunkline._core import PROMPT, SAMPLED, SYNTHETIC, TokenBuffer, read_reply
from trunkline.errors import ConfigError
from trunkline.scoring.aggregators.aggregate import aggregate
from trunkline.scoring.aggregators.voting import Majority, WeightedVote
from trunkline.scoring.confidence import candidates, entropy, logprob, reward, stated, value, verbalised
from trunkline.tree.views import Node, Trajectory, Tree
from trunkline.types import Task

NAN = math.nan
PIECES = ["confidence", ":", " ", "0.8", "9" * 50, "%", "<confidence>", "</confidence>", "/10", "-", ".", "sure"]


def tree_with(*turns: TokenBuffer | None) -> Tree:
    """A tree with one rollout whose turns have these tokens."""
    tree = Tree(Task.ask("what?", id="q"))
    core = tree.core
    rollout = core.open(core.append(0, PROMPT, said("user", "what?")), [0, 0])
    agent, model, finish = core.name("agent"), core.name("m"), core.name("stop")
    for place, tokens in enumerate(turns):
        core.turn(rollout, said("assistant", f"turn {place}"), agent, model, finish, 1, 0, 1, 0, 1, None, None, tokens)
        if place < len(turns) - 1:
            core.observe(rollout, said("user", f"seen {place}"), agent, 1)
    core.close(rollout, "answer", "yes")
    return tree


def test_logprob_is_the_geometric_mean_probability_of_what_was_sampled() -> None:
    tree = tree_with(
        TokenBuffer([1, 2], [-4.0, -4.0]),
        TokenBuffer([3, 4, 5], [-1.0, -3.0, -9.0], None, [SAMPLED, SAMPLED, SYNTHETIC]),
    )
    (rollout,) = tree.rollouts
    assert logprob(rollout) == pytest.approx(math.exp(-2))
    assert logprob(rollout, turns="all") == pytest.approx(math.exp(-3))
    with pytest.raises(ConfigError, match="turns must be one of last, all"):
        logprob(rollout, turns="first")


def nested(levels: int) -> Tree:
    """A tree in which every rollout forks where the one before it stands."""
    tree = Tree(Task.ask("what?", id="q"))
    core = tree.core
    point, none = core.append(0, PROMPT, said("user", "what?")), core.name("")
    for _ in range(levels):
        path, turn, draw, _ = core.state(point)
        rollout = core.open(point, [*path, turn, draw])
        core.turn(rollout, said("assistant", "go on"), none, none, none, 1, 0, 1, 0, 1)
        point = core.observe(rollout, said("user", "seen"), none, 1)
    for rollout in core.growing:
        core.close(rollout, "answer", "yes")
    return tree


@pytest.mark.parametrize("by", ["logprob", "entropy", "verbalised", "value"])
def test_candidates_of_nested_forks_read_each_node_a_few_times(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def count(node: Node, tree: Tree, id: int, make: Callable[[Node, Tree, int], None] = Node.__init__) -> None:
        nonlocal made
        made += 1
        make(node, tree, id)

    tree = nested(200)
    monkeypatch.setattr(Node, "__init__", count)
    assert len(candidates(tree, by)) == 200
    assert made <= 10 * len(tree.core)


def test_what_is_not_known_is_nan() -> None:
    for tree in (
        tree_with(None),
        tree_with(TokenBuffer([1, 2], [-1.0, NAN])),
        tree_with(TokenBuffer([1], None)),
        tree_with(),
    ):
        (rollout,) = tree.rollouts
        assert math.isnan(logprob(rollout))
        assert math.isnan(entropy(rollout))
    (rollout,) = tree_with(None, TokenBuffer([1], [-1.0])).rollouts
    assert logprob(rollout) == pytest.approx(math.exp(-1))
    assert math.isnan(logprob(rollout, turns="all")), "the first turn's tokens are not known"


def test_entropy_is_one_over_the_perplexity_of_the_last_turn() -> None:
    half = math.log(0.5)
    body = {
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab"},
                "finish_reason": "stop",
                "logprobs": {"content": [token_of(0, [half, half]), token_of(1, [half, half])]},
            }
        ]
    }
    choice = read_reply(json.dumps(body).encode()).choices[0]
    (rollout,) = tree_with(choice.tokens).rollouts
    assert entropy(rollout) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("<answer>x</answer> <confidence>0.8</confidence>", 0.8),
        ("<CONFIDENCE> 80 % </CONFIDENCE>", 0.8),
        ("Confidence: 80%", 0.8),
        ("**Confidence:** 0.9.", 0.9),
        ("confidence = .7", 0.7),
        ("My confidence in this answer is 90 percent", 0.9),
        ("I am 85% sure.", 0.85),
        ("Confidence: 7/10", 0.7),
        ("Confidence: 70 / 100", 0.7),
        ("Confidence: 95", 0.95),
        ("confidence is 1", 1.0),
        ("Confidence: 0", 0.0),
        ("Confidence: 0.2. On reflection, confidence: 0.6", 0.6),
        ("<think>Confidence: 0.1</think>Confidence: 0.4", 0.4),
        ("<think>Confidence: 0.1", NAN),
        ("Confidence: -0.5", NAN),
        ("Confidence: 8 out of 10", 0.8),
        ("Confidence: 85 out of 100", 0.85),
        ("Confidence: 1 out of 5", NAN),
        ("Confidence: 1% of it", NAN),
        ("Confidence: 1 - 5%", NAN),
        ("Confidence: 1% to 5%", NAN),
        ("Confidence: 1 /10.5", NAN),
        ('{"confidence": 0.8}', 0.8),
        ("I am not 100% sure.", NAN),
        ("I'm not quite 100 % certain", NAN),
        ("I don't feel 90% sure; I am 40% sure", 0.4),
        ("less than 50% sure", NAN),
        ("The 95% confidence interval is 12 to 15", NAN),
        ("Confidence: 5", NAN),
        ("Confidence: 10", NAN),
        ("Confidence: 300%", NAN),
        ("Confidence: 1.2", NAN),
        ("Confidence: 1e3", NAN),
        ("Confidence: 0.8/2", NAN),
        ("Confidence: 1,000", NAN),
        ("Confidence: 1990-1995", NAN),
        ("Confidence: nan", NAN),
        ("confident", NAN),
        ("", NAN),
        ("Confidence: 0.8" + " ." * 4000, NAN),
    ],
)
def test_a_stated_confidence_is_read_with_its_unit(text: str, share: float) -> None:
    assert stated(text) == pytest.approx(share, nan_ok=True)


@settings(max_examples=60)
@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_whatever_a_model_writes_is_a_share_or_nothing(text: str) -> None:
    share = stated(text)
    assert math.isnan(share) or 0 <= share <= 1


def test_value_is_that_of_the_last_state_shared_with_another_rollout() -> None:
    tree = grove(D6)
    assert [value(one) for one in tree.rollouts] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0, 1.0, 2 / 3])
    chains = grove([Try(["a", "a1"], 1.0), Try(["b", "b1"], 0.0)])
    assert [value(one) for one in chains.rollouts] == [0.5, 0.5], "chains share the prompt alone"
    twins = grove([Try(["a", "x"], 1.0), Try(["a", "x"], 0.0), Try(["a", "y"], 0.0), Try(["b"], 1.0)])
    assert twins.rollouts[0].leaf.id == twins.rollouts[1].leaf.id
    assert value(twins.rollouts[0]) == pytest.approx(1 / 3), "a leaf is no state that it came from, shared or not"
    negative = grove([Try(["a", "a1"], -1.0), Try(["a", "a2"], -1.0)])
    assert [value(one) for one in negative.rollouts] == [0.0, 0.0]
    assert [one.value for one in candidates(negative)] == [-1.0, -1.0], "who compares values sees them as they are"
    unscored = grove([Try(["a", "a1"]), Try(["a", "a2"])])
    assert all(math.isnan(value(one)) and math.isnan(reward(one)) for one in unscored.rollouts)


def test_only_rollouts_that_ended_well_are_candidates() -> None:
    tree = grove(
        [
            Try(["x"], 1.0),
            Try(["y"], ended="llm_error"),
            Try(["z"], ended="censored"),
            Try(["w"], 0.0, ended="max_turns"),
            Try(["v"], ended="filtered"),
        ]
    )
    tree.core.open(1, [0, 9])
    found = candidates(tree, "reward")
    assert [(one.id, one.answer, one.confidence, one.reward) for one in found] == [
        (0, "x", 1.0, 1.0),
        (3, None, 0.0, 0.0),
    ]
    assert all(one.messages == () and one.report == "" for one in found)
    tree.core.report(tree.rollouts[3].leaf.id, "It ran out of turns.")
    assert [one.report for one in candidates(tree)] == ["", "It ran out of turns."]
    (first, _) = candidates(tree, "reward", messages=True)
    assert [message["role"] for message in first.messages] == ["user", "assistant"]
    with pytest.raises(ConfigError, match="by must be one of logprob, entropy, verbalised, reward, value, not 'luck'"):
        candidates(tree, "luck")


async def test_a_tree_becomes_one_answer() -> None:
    tries = [Try([f"It is so. Confidence: {share}"]) for share in ("0.9", "0.2", "0.1")]
    tree = grove(tries)
    for rollout, share in zip(tree.rollouts, (0.9, 0.2, 0.1), strict=True):
        assert verbalised(rollout) == share
    answered = grove([Try(["no"], 0.0), Try(["a", "yes"], 1.0), Try(["a", "no"], 0.0), Try(["broken"], ended="lost")])
    decision = await aggregate(answered)
    assert (decision.answer, decision.voters, decision.method) == ("no", (0, 2), "majority")
    decision = await aggregate(answered, WeightedVote(by="reward"))
    assert (decision.answer, decision.voters) == ("yes", (1,))
    decision = await aggregate(answered, WeightedVote(), by="reward")
    assert decision.answer == "yes"
    assert (await aggregate(grove([]))).answer is None


async def test_what_is_no_aggregator_is_refused() -> None:
    tree = grove([Try(["no"])])
    for wrong in (Majority, None):
        with pytest.raises(ConfigError, match="aggregator must be an aggregator, such as Majority"):
            await aggregate(tree, wrong)

    class Silent:
        async def decide(self, question, candidates):
            return None

    with pytest.raises(ConfigError, match=r"Silent\.decide must return a Decision, not None"):
        await aggregate(tree, Silent())


def test_a_rollout_without_a_turn_says_nothing() -> None:
    tree = grove([Try([], ended="max_turns")])
    rollout = Trajectory(tree, 0)
    assert all(math.isnan(source(rollout)) for source in (logprob, entropy, verbalised, reward, value))
