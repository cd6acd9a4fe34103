"""Partial rollouts: which turns are drawn again, how often, in what order, and what fills the budget up."""

from __future__ import annotations

from math import log

import pytest
from scripted import Say, grow, look, paths

from trunkline._core import TURN
from trunkline.agent import Agent
from trunkline.errors import ConfigError
from trunkline.strategies.base import Fork, View
from trunkline.strategies.chain import Chain
from trunkline.strategies.partial import Partial, candidates, founders
from trunkline.tools.tool import tool
from trunkline.tree.views import Tree
from trunkline.types import Task

PLAIN = 1, 1, 1
"""Perplexities of a turn that is sure of everything: think, tool, all."""


def sampled(entropy: float) -> list[float]:
    """Log-probabilities of the four likeliest tokens whose entropy is this: p, and three times (1 - p) / 3."""
    low, high = 0.25, 1.0
    for _ in range(60):
        p = (low + high) / 2
        rest = (1 - p) / 3
        found = -p * log(p) - (3 * rest * log(rest) if rest > 0 else 0)
        low, high = (p, high) if found > entropy else (low, p)
    p = (low + high) / 2
    return [log(p), *[log(max((1 - p) / 3, 1e-300))] * 3]


def unsure(think: float, tool: float, whole: float) -> dict[str, object]:
    """The tokens of a turn of these perplexities: ten in the thought, ten in the call, ten in no region and the tags.

    Perplexity is exp of the mean entropy, so what is in no region must have the entropy that makes the mean of all 34:
    34 ln(whole) = 10 ln(think) + 10 ln(tool) + 14 x.
    """
    rest = max(0.0, (34 * log(whole) - 10 * log(think) - 10 * log(tool)) / 14)
    spelled = ["<think>", *["a"] * 10, "</think>", *["b"] * 10, "<tool_call>", *["c"] * 10, "</tool_call>"]
    entropies = [rest, *[log(think)] * 10, rest, *[rest] * 10, rest, *[log(tool)] * 10, rest]
    return {"spelled": spelled, "logprobs": [sampled(entropy) for entropy in entropies]}


def turn_of(conversation: list[dict]) -> int:
    return sum(message["role"] == "assistant" for message in conversation)


WORKED = [(1.5, 1.1, 1.3), (1.2, 2.0, 1.4), (3.0, 1.9, 2.2), (1, 1, 1)]


def worked(conversation: list[dict], seed: int) -> Say:
    """Four turns that look something up, each as unsure as the worked example has it, and an answer."""
    turn = turn_of(conversation)
    return Say(f"{seed}", final=turn == 4, **({} if turn == 4 else unsure(*WORKED[turn])))


async def picks(region: str, k: int) -> list[int]:
    """Which turns of the worked example a round takes, most uncertain first."""
    tree, _ = await grow(Partial(region=region, top_k=k, samples=1, budget=1 + k), worked)
    return [rollout.point.turns for rollout in tree.rollouts[1 : 1 + k]]


async def test_a_real_tree_has_the_perplexities_of_the_worked_example():
    tree, _ = await grow(Chain(), worked)
    found = [tree.core.node(node.id).perplexity for node in tree.nodes if node.kind == TURN]
    for here, want in zip(found, WORKED, strict=False):
        assert here == pytest.approx(want, abs=1e-4)
    assert all(value != value for value in found[4]), "the answer has none"


@pytest.mark.parametrize(
    ("region", "k", "turns"),
    [
        ("tool", 2, [1, 2]),  # 2.0, 1.9
        ("think", 2, [2, 0]),  # 3.0, 1.5
        ("all", 2, [2, 1]),  # 2.2, 1.4
        ("mixed", 3, [1, 2, 0]),  # two by tool, 2.0 and 1.9; one by think: 3.0 is taken already, so 1.5
    ],
)
async def test_the_worked_picks_are_made_on_a_real_tree(region: str, k: int, turns: list[int]):
    assert await picks(region, k) == turns


async def test_the_defaults_make_one_initial_rollout_six_branches_and_a_fresh_one():
    tree, llm = await grow(Partial(), worked)
    # Turns 1 and 2 are the most uncertain by tool; fork paths are turn, draw. Draw 0 of a state is the chain's own.
    assert paths(tree) == [
        (0, 0),
        (0, 0, 1, 1), (0, 0, 1, 2), (0, 0, 1, 3),
        (0, 0, 2, 1), (0, 0, 2, 2), (0, 0, 2, 3),
        (0, 1),
    ]  # fmt: skip
    assert [rollout.subgroup for rollout in tree.rollouts] == [0] * 8
    assert all(rollout.turns == 5 for rollout in tree.rollouts), "each is played to its end"
    assert len(llm.asked) == 5 + 3 * 4 + 3 * 3 + 5, "the turn itself is drawn again, the trunk is not"
    assert Partial().rollouts() == 8
    assert Partial().formula() == "I (1 + K R T) = 1 (1 + 2 x 1 x 3) = 7; 1 fresh or more: 8"


async def test_limits_hold_for_the_whole_path():
    tree, _ = await grow(Partial(), worked, max_turns=3)
    assert {rollout.turns for rollout in tree.rollouts} == {3}
    assert {rollout.termination.value for rollout in tree.rollouts} == {"max_turns"}


async def test_several_initial_rollouts_share_the_budget_and_what_is_left_over_is_not_spent():
    strategy = Partial(initial=2, top_k=1, samples=2, budget=9)
    tree, _ = await grow(strategy, worked)
    # floor(9 / 2) = 4 each: 1 initial, 1 x 2 branches, 4 - 1 - 2 = 1 fresh.
    assert strategy.rollouts() == 8
    assert paths(tree) == [
        (0, 0), (0, 1),
        (0, 0, 1, 1), (0, 0, 1, 2), (0, 1, 1, 1), (0, 1, 1, 2),
        (0, 2), (0, 3),
    ]  # fmt: skip
    assert [rollout.subgroup for rollout in tree.rollouts] == [0, 1, 0, 0, 1, 1, 0, 1]


def fading(conversation: list[dict], seed: int) -> Say:
    """Three turns, the first the most uncertain; the draws of a second turn differ in how sure they are."""
    turn = turn_of(conversation)
    doubt = [3.0, 2.0, 1.5][turn] if turn < 3 else 1.0
    return Say(f"{seed}", final=turn == 3, **({} if turn == 3 else unsure(1, doubt, doubt)))


async def test_a_second_round_takes_states_that_no_round_has_taken():
    """By hand: turns of the chain have 3, 2 and 1.5. Round 1 (K = 1) forks at the prompt, T = 2: A and B.

    Round 2 looks at the chain, A and B. The prompt is taken. Turn 1 has 2.0 on all three; the earliest is the chain's.
    Round 3: turn 1 of A and of B; A's is the earlier. Then turn 1 of B would be next.
    """
    tree, _ = await grow(Partial(top_k=1, rounds=3, samples=2, budget=8), fading)
    assert paths(tree) == [
        (0, 0),
        (0, 1), (0, 2),
        (0, 0, 1, 1), (0, 0, 1, 2),
        (0, 1, 1, 1), (0, 1, 1, 2),
        (0, 3),
    ]  # fmt: skip


async def test_fewer_turns_than_k_are_made_up_for_by_fresh_rollouts():
    def one_look(conversation: list[dict], seed: int) -> Say:
        turn = turn_of(conversation)
        return Say(f"{seed}", final=turn == 1, **({} if turn else unsure(*PLAIN)))

    tree, _ = await grow(Partial(), one_look)
    # One turn calls a tool, so b = 1: 8 - 1 - 1 x 3 = 4 fresh ones, beside 3 branches.
    assert paths(tree) == [(0, draw) for draw in range(8)]
    assert [rollout.point.turns for rollout in tree.rollouts] == [0] * 8


async def test_turns_of_unknown_perplexity_are_never_taken():
    tree, _ = await grow(Partial(), lambda said, seed: Say(f"{seed}", final=turn_of(said) == 2))
    assert paths(tree) == [(0, draw) for draw in range(8)], "7 fresh rollouts, not one branch"


@tool
async def open_page(what: str) -> str:
    """Open a page.

    Args:
        what: Which.
    """
    return f"page {what}"


async def test_only_turns_that_call_a_named_tool_are_taken():
    assert await picks_of(("look",)) == [1, 2]
    assert await picks_of(("open_page",)) == [], "nobody calls it"


async def picks_of(tools: tuple[str, ...]) -> list[int]:
    tree, _ = await grow(Partial(samples=1, budget=3, tools=tools), worked, tools=(look, open_page))
    return [rollout.point.turns for rollout in tree.rollouts[1:] if len(rollout.path) > 2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budget": 6}, "budget must be at least I (1 + K R T) = 7, not 6"),
        ({"initial": 2}, "budget must be at least I (1 + K R T) = 14, not 8"),
        ({"region": "speech"}, "region must be think, tool, all, mixed, not 'speech'"),
        ({"top_k": 0}, "Partial: top_k"),
        ({"tools": "search"}, "tools must be a list of names"),
        ({"tools": (1,)}, "Partial: tools"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, says: str):
    with pytest.raises(ConfigError) as refused:
        Partial(**options)
    assert says in str(refused.value)


def test_a_tool_that_the_agent_lacks_is_named():
    with pytest.raises(ConfigError, match=r"tools names 'serch', which the agent lacks; it has look"):
        Partial(tools=("serch",)).fits(Agent(model="m", tools=(look,)))


def earlier(*ends: tuple[str, int]) -> Tree:
    """A tree that an earlier run left: rollouts with these terminations and subgroups."""
    tree = Tree(Task.ask("what?", id="q"))
    point = tree.core.append(0, 1, b'{"role":"user","content":"what?"}')
    for number, (termination, subgroup) in enumerate(ends):
        tree.core.open(point, [0, number], subgroup)
        tree.core.close(number, termination)
    return tree


@pytest.mark.parametrize(
    ("ends", "initial", "missing"),
    [
        ([("max_turns", 0), ("answer", 1)], [1, 0], 0),
        ([("max_context", 0), ("llm_error", 1), ("censored", 2), ("lost", 3)], [2, 0], 0),
        ([("answer", 0), ("answer", 0), ("max_turns", 1)], [0, 2], 0),
        ([("max_turns", 0), ("answer", 0)], [1], 1),
        ([("llm_error", 0)], [], 2),
        ([], [], 2),
    ],
    ids=["answered first", "full last, broken never", "one a chain", "the best of its chain", "broken", "none"],
)
def test_initial_rollouts_of_an_earlier_run_are_chosen_in_order(ends: list, initial: list[int], missing: int):
    tree = earlier(*ends)
    view = View(tree, [], 7, tree.core.rollouts)
    assert founders(view, 2) == initial
    forks = list(Partial(initial=2, budget=14).start(view))
    if missing:
        assert [(fork.point, fork.n) for fork in forks] == [(None, missing)]
    else:
        # Nothing to branch at: 14 / 2 - 1 = 6 fresh ones for each chain.
        assert [(fork.n, fork.subgroup) for fork in forks] == [
            (6, tree.core.rollout(number).subgroup) for number in initial
        ]


async def test_a_chain_of_an_earlier_run_is_branched_at_and_paid_once():
    chain, before = await grow(Chain(2), worked)
    tree, llm = await grow(Partial(), worked, core=chain.core)
    assert paths(tree) == [
        (0, 0), (0, 1),
        (0, 0, 1, 1), (0, 0, 1, 2), (0, 0, 1, 3),
        (0, 0, 2, 1), (0, 0, 2, 2), (0, 0, 2, 3),
        (0, 2),
    ]  # fmt: skip
    assert len(before.asked) == 10
    assert len(llm.asked) == 3 * 4 + 3 * 3 + 5
    again, _ = await grow(Partial(), worked, core=tree.core)
    # Chain 0 was forked at the prompt (its fresh one), turn 1 and turn 2. Left are the fresh one's turn 1 (2.0), and of
    # 1.9 the earliest: turn 2 of the first branch.
    assert paths(again)[9:] == [
        (0, 2, 1, 1), (0, 2, 1, 2), (0, 2, 1, 3),
        (0, 0, 1, 1, 2, 1), (0, 0, 1, 1, 2, 2), (0, 0, 1, 1, 2, 3),
        (0, 3),
    ]  # fmt: skip


CALL = '<tool_call>{"name": "look", "arguments": {"what": "%s"}}</tool_call>'


async def test_calls_are_those_that_the_dialect_reads():
    def in_text(conversation: list[dict], seed: int) -> Say:
        turn = turn_of(conversation)
        thought = "" if turn == 4 else CALL % seed
        return Say(f"{seed}", final=True, thought=thought, **({} if turn == 4 else unsure(*WORKED[turn])))

    tree, _ = await grow(Partial(tools=("look",)), in_text, dialect="hermes")
    assert [rollout.point.turns for rollout in tree.rollouts] == [0, 1, 1, 1, 2, 2, 2, 0]


class Twice:
    """A chain, and another that counts as expanded for it."""

    def rollouts(self) -> int:
        return 2

    def start(self, view: View) -> list[Fork]:
        return [Fork(), Fork(subgroup=0)]


async def test_a_state_at_which_two_rollouts_met_is_one_place_to_branch_at():
    def meeting(conversation: list[dict], seed: int) -> Say:
        turn = turn_of(conversation)
        return Say("same" if turn == 0 else f"{seed}", final=turn == 2)

    tree, _ = await grow(Twice(), meeting)
    one, other = tree.rollouts
    met = [node.id for node in one.nodes if node.kind == TURN]
    assert met[0] in [node.id for node in other.nodes], "both began with the same turn"
    assert met[1] not in [node.id for node in other.nodes], "and went on differently"
    # The prompt was forked at by the second; after the first turn there are two turns of one state, the first's counts.
    assert list(candidates(View(tree, [], 7), 0, 2)) == [met[1]]
    state = tree.core.node(met[1]).parent
    assert met[1] not in candidates(View(tree, [], 7, closed=[state]), 0, 2), "no draw can be taken there"
