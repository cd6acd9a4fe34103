"""Estimators see steps: the worked examples on trees with system prompts and several observations a turn."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from groves import D6, E6, Try, grove
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline._core import SAMPLED, SYNTHETIC, TURN, TokenBuffer, presets
from trunkline.errors import ArgumentError, UsageError
from trunkline.llm.batch.completion import Completion, Prompt
from trunkline.llm.types import ToolCall
from trunkline.tree.views import Trajectory, Tree
from trunkline.types import Task

SIX = [(3, 3), (3, 3), (3, 3), (2, 2, 2), (2, 2, 2), (2, 4)]
D6_OF_SIX = [one._replace(generated=lengths) for one, lengths in zip(D6, SIX, strict=True)]
"""The uneven tree, with six tokens in each rollout."""

TREERL = [
    Try(["s", "main0"], 1.0),
    Try(["s", "s.a"], 0.0),
    Try(["s", "s.b"], 0.0),
    Try(["t", "t.a"], 1.0, subgroup=1),
    Try(["t", "u", "main1"], 1.0, subgroup=1),
    Try(["t", "u", "u.a"], 0.0, subgroup=1),
]
"""Two chains of segments, and the branches of TreeRL's worked example."""

RAW = {"whiten": "none"}
LEAVES = ("A1", "A2", "A3", "B1a", "B1b", "B2")
TURNS = ("A", "A1", "A2", "A3", "B", "B1", "B1a", "B1b", "B2")
SEGMENTS = ("s", "main0", "s.a", "s.b", "t", "t.a", "u", "main1", "u.a")
FLAT = ("T1a", "T1b", "T1c", "T2d", "T2e", "T2f")
EXAMPLES: list[tuple[str, dict[str, Any], Sequence[Try], Sequence[str], list[float]]] = [
    ("treepo_average", RAW, D6, LEAVES, [0.583333, -0.416667, -0.416667, 0.277778, 0.277778, -0.583333]),
    ("treepo_average", {}, D6_OF_SIX, LEAVES, [1.406345, -0.827262, -0.827262, 0.723854, 0.723854, -1.199530]),
    (
        *("treepo_average", RAW | {"zero_variance": "drop_subgroups"}, D6, LEAVES),
        [0.583333, -0.416667, -0.416667, 0.416667, 0.416667, -0.583333],
    ),
    ("treepo_size", RAW, D6, LEAVES, [0.555556, -0.444444, -0.444444, 0.363636, 0.363636, -0.555556]),
    ("treepo_size", {}, D6_OF_SIX, LEAVES, [1.247173, -0.893928, -0.893928, 0.836255, 0.836255, -1.131828]),
    ("treepo_segments", {"relative": False}, D6, TURNS, [1 / 3, 2 / 3, -1 / 3, -1 / 3, 0.5, 0.5, 0, 0, -0.5]),
    (
        *("treerl_paper", {}, D6, TURNS),
        [-0.192450, 1.166667, -0.833333, -0.833333, 0.192450, 0.589256, 0.5, 0.5, -1.166667],
    ),
    ("tree_grpo_diff", {}, D6, TURNS, [0.192450, 1.566667, 0, 0, 0.423390, 0.872098, 1, 1, 0]),
    ("spo_rloo", {}, D6, TURNS, [-0.083333, 0.666667, -1 / 3, -1 / 3, 0.083333, 0.5, 0, 0, -0.5]),
    ("spo_grpo", {}, D6, TURNS, [-1, 1.414214, -0.707107, -0.707107, 1, 1, 0, 0, -1]),
    (
        "treerl_code",
        {},
        TREERL,
        SEGMENTS,
        [-0.230940, 1.315470, *[-1.084530] * 2, 0.230940, 1.084530, -0.115470, 1.2, -1.2],
    ),
    (
        *("treerl_code", {"damping": "uniform"}, TREERL, SEGMENTS),
        [-0.133333, 1.266667, *[-1.133333] * 2, 0.133333, 1.133333, -0.066667, 1.2, -1.2],
    ),
    ("treerl_code", {"damping": "none"}, TREERL, SEGMENTS, [-0.4, 1.4, -1, -1, 0.4, 1, -0.2, 1.2, -1.2]),
    # Undamped V is -.2, .2, 0 at s, t, u: means of V less that of the root (0) and of each segment above.
    (
        *("treerl_code", {"damping": "none", "signal": "ancestors"}, TREERL, SEGMENTS),
        [-0.2, 0.7, -0.5, -0.5, 0.2, 0.5, -0.1, 0.6 - 0.2 / 3, -0.6 - 0.2 / 3],
    ),
    ("arpo_hard", {}, D6, TURNS, [-0.304290, 0.912869, *[-0.912869] * 2, 0.304290, *[0.912869] * 3, -0.912869]),
    ("verl_grpo", {}, E6, FLAT, [0.912869, -0.912869, -0.912869, 0.912869, 0.912869, -0.912869]),
    ("dr_grpo", {}, E6, FLAT, [0.5, -0.5, -0.5, 0.5, 0.5, -0.5]),
    ("rloo", {}, E6, FLAT, [0.6, -0.6, -0.6, 0.6, 0.6, -0.6]),
    (
        *("reinforce_pp_baseline", {}, [one._replace(generated=2) for one in E6], FLAT),
        [0.957427, -0.957427, -0.957427, 0.957427, 0.957427, -0.957427],
    ),
    ("tree_grpo_published", {}, E6, FLAT, [2.067568, -1.490219, -1.490219, 1.490218, 1.490218, -2.067568]),
    ("tree_2norm", {}, E6, FLAT, [1.154699, -0.577350, -0.577350, 0.577350, 0.577350, -1.154699]),
]


def values(tree: Tree, estimator: str, **options: Any) -> dict[str, float]:
    samples = tl.train.turns([tree], estimator=estimator, shared="once", **options)
    return {sample.messages[-1]["content"]: sample.advantage for sample in samples}


@pytest.mark.parametrize(("before", "seen"), [(0, 1), (1, 1), (2, 3)])
@pytest.mark.parametrize(("estimator", "options", "tries", "names", "expected"), EXAMPLES)
def test_worked_examples_hold_whatever_stands_between_the_turns(
    estimator: str,
    options: dict[str, Any],
    tries: Sequence[Try],
    names: Sequence[str],
    expected: list[float],
    before: int,
    seen: int,
):
    found = values(grove(tries, before=before, seen=seen), estimator, **options)
    assert [found[name] for name in names] == pytest.approx(expected, abs=2e-5)


@tl.tool
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing at {place}"


BRANCHES = {"": ["A", "A", "A", "B", "B", "B"], "A": ["A1", "A2", "A3"], "B": ["B1", "B1", "B2"], "B1": ["B1a", "B1b"]}


def right(trajectory: Trajectory) -> float:
    return float(trajectory.answer in {"A1", "B1a", "B1b"})


def test_a_run_with_a_system_prompt_and_parallel_calls_has_the_values_of_its_turns():
    met: dict[str, int] = defaultdict(int)

    def generate(prompts: list[Prompt]) -> list[Completion]:
        made = []
        for prompt in prompts:
            said = [message["content"] for message in prompt.messages if message["role"] == "assistant"]
            state = said[-1] if said else ""
            text = BRANCHES[state][met[state]]
            met[state] += 1
            calls = [ToolCall(f"{text}{n}", "look", f'{{"place":"{n}"}}') for n in range(2 + (text == "A"))]
            made.append(Completion(text=text, tool_calls=calls if text in BRANCHES else []))
        return made

    agent = tl.Agent(model="m", system="Be brief.", tools=[look])
    llm = tl.BatchLLM(generate)
    (tree,) = tl.run(agent, [Task.ask("q")], llm=llm, strategy=tl.Chain(6), reward=right, seed=1)
    assert len([node for node in tree.core.shape()[1] if node == TURN]) == len(TURNS)
    for estimator, options, tries, names, expected in EXAMPLES:
        if tries is D6:
            found = values(tree, estimator, **options)
            assert [found[name] for name in names] == pytest.approx(expected, abs=2e-5)


TRIES = st.lists(
    st.builds(
        lambda turns, reward, chain: Try(turns, reward, subgroup=chain),
        st.lists(st.sampled_from("abc"), max_size=4),
        st.sampled_from([0.0, 0.25, 1.0, math.nan]),
        st.integers(0, 2),
    ),
    max_size=7,
)


@given(
    st.sampled_from(sorted(presets())), st.lists(TRIES, min_size=1, max_size=2), st.integers(0, 2), st.integers(0, 3)
)
def test_messages_of_a_prompt_and_observations_change_no_value_of_a_turn(
    estimator: str, listed: list[list[Try]], before: int, seen: int
):
    def told(take: Any, before: int, seen: int) -> Any:
        trees = [grove(tries, f"q{number}", before=before, seen=seen) for number, tries in enumerate(listed)]
        try:
            taken = list(take(trees, estimator=estimator, shared="repeat"))
        except ArgumentError as error:
            return str(error).partition(" of ")[0]
        return [(one.group, one.rollout, one.turn, one.reply, one.trained, one.advantage) for one in taken]

    # GiGPO tells states by what was observed.
    seen = max(seen, estimator.startswith("gigpo"))
    for take in (tl.train.turns, tl.train.rows):
        found, plain = told(take, before, seen), told(take, 0, 1)
        if isinstance(plain, str):
            assert found == plain
        else:
            assert [one[:5] for one in found] == [one[:5] for one in plain]
            assert [one[5] for one in found] == pytest.approx([one[5] for one in plain], abs=1e-9)


UNEVEN = [Try(["a"], 1.0, generated=10), Try(["b"], 0.0, generated=100)]
UNEVEN += [Try(["c"], 0.0, generated=10), Try(["d"], 1.0, generated=10)]


@pytest.mark.parametrize("take", [tl.train.turns, tl.train.rows])
def test_whitening_is_over_the_tokens_of_turns(take: Any):
    # R - .5 over 10, 100, 10 and 10 tokens: mean -45 / 130, squares 32.5 - 45^2 / 130 over 129.
    found = [one.advantage for one in take([grove(UNEVEN)], estimator="reinforce_pp_baseline", shared="once")]
    assert found == pytest.approx([2.336170, -0.424758, -0.424758, 2.336170], abs=1e-6)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 50), min_size=1, max_size=3), st.sampled_from([0.0, 1.0])), max_size=6),
    st.sampled_from(["group", "group+agent"]),
)
def test_whitened_values_are_those_of_a_loop_over_tokens(listed: list[tuple[list[int], float]], scopes: str):
    tries = [
        Try([f"{number}.{turn}" for turn in range(len(lengths))], reward, generated=lengths)
        for number, (lengths, reward) in enumerate(listed)
    ]
    samples = list(tl.train.turns([grove(tries)], estimator="dr_grpo", shared="once", whiten="batch", scopes=scopes))
    # A row is a rollout, or a turn where agents are compared; one group has all rows.
    rows = [reward for lengths, reward in listed for _ in lengths] if "agent" in scopes else [one[1] for one in listed]
    mean = math.fsum(rows) / len(rows) if len(rows) > 1 else 0.0
    tokens = [reward - mean for lengths, reward in listed for length in lengths for _ in range(length)]
    centre = math.fsum(tokens) / len(tokens) if tokens else 0.0
    spread = math.fsum((value - centre) ** 2 for value in tokens) / (len(tokens) - 1) if len(tokens) > 1 else 0.0
    expected = [(reward - mean - centre) / math.sqrt(spread + 1e-8) for lengths, reward in listed for _ in lengths]
    assert [sample.advantage for sample in samples] == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_tokens_that_are_whitened_over_are_those_that_are_trained():
    tree = grove([])
    core = tree.core
    agent, model, stop = (core.name(name) for name in ("agent", "m", "stop"))
    for draw, length in enumerate((10, 100, 10, 10)):
        rollout = core.open(1, [0, draw], draw)
        flags = [SAMPLED] * length + [SAMPLED | SYNTHETIC, 0, SYNTHETIC]
        ids = TokenBuffer([draw] * len(flags), [-0.5] * len(flags), [0] * len(flags), flags)
        core.turn(rollout, b'{"role":"assistant"}', agent, model, stop, 10, 0, 1, 0, 1, None, None, ids)
        core.close(rollout, "answer", "yes")
        core.score(rollout, UNEVEN[draw].reward)
    found = [one.advantage for one in tl.train.turns([tree], estimator="reinforce_pp_baseline", shared="once")]
    assert found == pytest.approx([2.336170, -0.424758, -0.424758, 2.336170], abs=1e-6)


def test_whitening_needs_the_number_of_tokens_of_what_is_trained():
    tree = grove([*UNEVEN, Try(["e"], 0.5, generated=-1)])
    with pytest.raises(UsageError, match=r'task "q": .*is not known, and whiten=\'batch\' counts tokens: say whiten='):
        tl.train.turns([tree], estimator="reinforce_pp_baseline", shared="once")
    assert len(list(tl.train.turns([tree], estimator="reinforce_pp_baseline", shared="once", whiten="none"))) == 5
    masked = grove([*UNEVEN, Try(["e"], ended="llm_error", generated=-1)])
    found = [one.advantage for one in tl.train.turns([masked], estimator="reinforce_pp_baseline", shared="once")]
    assert found == pytest.approx([2.336170, -0.424758, -0.424758, 2.336170, 0.0], abs=1e-6)


def test_a_turn_that_says_something_has_tokens_and_one_that_says_nothing_is_not_magnified():
    with pytest.raises(UsageError, match="how many tokens turn 2 has is not known"):
        tl.train.turns([grove([Try(["a"], 1.0, generated=0)])], estimator="reinforce_pp_baseline", shared="once")
    tree = grove([*UNEVEN, Try([""], 0.0, generated=0)])
    found = [one.advantage for one in tl.train.turns([tree], estimator="reinforce_pp_baseline", shared="once")]
    assert found == pytest.approx([2.336170, -0.424758, -0.424758, 2.336170, 0.0], abs=1e-6)


@pytest.mark.parametrize("options", [{"eps": 0.5}, {"ddof": 0}, {"scale": "none"}, {"whiten": "batch"}])
def test_spo_refuses_what_it_would_ignore(options: dict[str, Any]):
    (name,) = options
    with pytest.raises(ArgumentError, match=f'an option is "{name}", and there are count_masked, drop_zero'):
        tl.train.turns([grove(D6)], estimator="spo_rloo", shared="once", **options)
