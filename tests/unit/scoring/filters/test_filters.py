"""The filters, against cases computed by hand."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest
from groves import Try, group, grove, said
from hypothesis import given
from hypothesis import strategies as st
from plain_reply import assistant

from trunkline import filters
from trunkline._core import TokenBuffer, drift
from trunkline.errors import ConfigError
from trunkline.llm.types import ToolCall
from trunkline.scoring.filters.builtin import repeats
from trunkline.scoring.notes import Verdict


def found(judging: filters.Filter, tries: list[Try], dialect: str = "native") -> dict[int, Verdict]:
    return dict(judging.judge(group(grove(tries), dialect)))


def hermes(tries: list[Try], judging: filters.Filter | None = None) -> dict[int, Verdict]:
    return found(judging or filters.VoidTurns(), tries, "hermes")


CALL = '<tool_call>\n{"name": "look", "arguments": {"what": "x"}}\n</tool_call>'


def test_a_turn_that_neither_calls_nor_answers_masks_its_whole_trajectory():
    verdicts = hermes([Try([CALL, "yes"], 1.0), Try([CALL, " \n"], 0.0), Try(["", "late"], 0.0)])
    assert verdicts == {
        1: Verdict("void_turns", "mask", "turn 2 neither calls a tool nor answers"),
        2: Verdict("void_turns", "mask", "turn 1 neither calls a tool nor answers"),
    }
    assert verdicts[1].count_in_baseline, "as in SimpleTIR"


def test_a_void_turn_of_a_shared_trunk_masks_all_that_pass_it():
    assert list(hermes([Try(["", "a"], 1.0), Try(["", "b"], 1.0), Try([CALL, "c"], 1.0)])) == [0, 1]


def test_a_turn_cut_off_by_its_limit_is_void_by_setting():
    cut = [Try(["half a thou"], 0.0, "max_tokens", finish="length")]
    assert list(hermes(cut)) == [0]
    assert hermes(cut, filters.VoidTurns(truncated=False)) == {}


def test_who_broke_or_was_cut_is_not_judged_and_who_was_ended_at_the_void_turn_is():
    tries = [Try([""], ended="llm_error"), Try([""], ended="censored"), Try([""], ended="filtered")]
    assert list(hermes(tries)) == [2]


def test_void_turns_drop_or_leave_the_baseline_as_set():
    judging = filters.VoidTurns(action="drop", count_in_baseline=False)
    (verdict,) = hermes([Try([""], 0.0)], judging).values()
    assert (verdict.action, verdict.count_in_baseline) == ("drop", False)


def rewards(*listed: float) -> list[Try]:
    return [Try([f"t{place}"], reward) for place, reward in enumerate(listed)]


NAN = float("nan")


@pytest.mark.parametrize(
    ("judging", "listed", "keeps"),
    [
        (filters.ZeroVariance(), (1.0, 0.0), True),
        (filters.ZeroVariance(), (0.0, 0.0), False),
        (filters.ZeroVariance(), (1.0,), True),  # a group of one is kept
        (filters.ZeroVariance(), (NAN, NAN), False),
        (filters.ZeroVariance(), (1.0, NAN), True),  # unscored is not 0: one is left
        (filters.ZeroVariance(), (0.1, 0.1, 0.1), False),  # rounded, their std would be 1.4e-17
        (filters.ZeroVariance(single=False), (1.0,), False),
        (filters.SimpleTIR(), (0.5, 0.5015), False),  # std .00075
        (filters.SimpleTIR(), (0.5, 0.503), True),  # std .0015
        (filters.SimpleTIR(low=0.1, high=0.9), (1.0, 0.0), True),
        (filters.SimpleTIR(low=0.1, high=0.9), (1.0,) * 19 + (0.0,), False),  # mean .95
        (filters.SimpleTIR(unclipped=4), (1.0, 0.0, 1.0), False),
        (filters.SimpleTIR(unclipped=4), (1.0, 0.0, 1.0, 1.0), True),
        (filters.Slime(), (0.0, 1.3e-6), False),  # |d| / sqrt 2 = .92e-6
        (filters.Slime(), (0.0, 1.5e-6), True),  # 1.06e-6, where ddof 0 gives .75e-6
        (filters.Slime(), (1.0,), False),
        (filters.SkyRL(), (0.0, 0.9e-6), False),
        (filters.SkyRL(), (0.0, 1.1e-6), True),
        (filters.SkyRL(), (1.0, NAN), True),  # one is live: "at most one" stays
        (filters.SkyRL(), (NAN, NAN), False),
        (filters.ZeroVariance(measure="spread"), (0.0, 5e-324), True),
    ],
)
def test_groups_without_variance_are_dropped_whole(judging: filters.Filter, listed: tuple[float, ...], keeps: bool):
    verdicts = found(judging, rewards(*listed))
    assert list(verdicts) == ([] if keeps else list(range(len(listed))))
    assert all((one.filter, one.action) == ("zero_variance", "drop") for one in verdicts.values())


def test_a_group_whose_rollouts_all_hit_their_limit_is_dropped_by_simpletir():
    clipped = [Try(["a"], 1.0, "max_tokens"), Try(["b"], 0.0, "max_context")]
    assert found(filters.ZeroVariance(), clipped) == {}
    assert set(found(filters.SimpleTIR(), clipped)) == {0, 1}
    assert found(filters.SimpleTIR(), [*clipped, Try(["c"], 0.0)]) == {}


def test_variance_is_that_of_live_rollouts_or_with_penalties_or_with_the_masked_as_set():
    tree = grove(rewards(1.0, 1.0, 0.0))
    one = group(tree)
    tree.core.note(2, '[{"filter":"x","action":"mask"}]')
    assert set(dict(filters.ZeroVariance().judge(one))) == {0, 1, 2}, "only 1 and 1 are left"
    assert dict(filters.ZeroVariance(masked=True).judge(one)) == {}, "the masked one counts in the baseline"
    tree.core.note(2, '[{"filter":"x","action":"mask","count_in_baseline":false}]')
    assert dict(filters.ZeroVariance(masked=True).judge(one)) != {}
    tree.core.note(1, '[{"filter":"y","action":"penalty","amount":-0.5}]')
    assert dict(filters.ZeroVariance().judge(one)) != {}
    assert dict(filters.ZeroVariance(shaped=True).judge(one)) == {}, "1 and 1 - .5"


def test_repetition_reads_arguments_as_the_model_wrote_them():
    # 24 line breaks, which are no JSON: in a history each of them takes two characters, and 48 would repeat 32 often
    tree = grove([])
    core = tree.core
    rollout = core.open(1, [0, 0], 0)
    message = assistant("", [ToolCall("", "look", "\n" * 24 + "x")])
    core.turn(rollout, message, core.name("a"), core.name("m"), core.name("stop"), 10, 0, 5, 0, 1)
    core.close(rollout, "max_turns")
    assert dict(filters.Repetition().judge(group(tree))) == {}
    assert dict(filters.Repetition(window=10).judge(group(tree))) != {}, "24 - 10 + 1 = 15 places"


@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=6))
def test_dapo_keeps_exactly_the_groups_with_two_different_rewards_or_one_rollout(listed: list[float]):
    keeps = len(set(listed)) > 1 or len(listed) == 1
    assert (found(filters.ZeroVariance(), rewards(*listed)) == {}) is keeps


@pytest.mark.parametrize(
    ("tokens", "amount"), [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20480, -1.0), (24576, -2.0)]
)
def test_the_overlong_penalty_grows_within_the_buffer(tokens: int, amount: float):
    # L_exp = 20480 - 4096 = 16384; -(18432 - 16384) / 4096 = -2048 / 4096 = -.5
    assert filters.OverlongPenalty().amount(tokens) == amount


def test_the_overlong_penalty_counts_what_was_generated_on_the_path_and_is_none_where_it_is_short():
    judging = filters.OverlongPenalty(length=20, buffer=10, factor=2.0)
    verdicts = found(judging, [Try(["a", "b", "c"], 1.0), Try(["d", "e"], 1.0), Try(["a", "b", "x", "y"], 1.0)])
    # 15, 10 and 20 tokens: -(15 - 10) / 10 * 2 = -1, 0, -2
    assert {number: one.amount for number, one in verdicts.items()} == {0: -1.0, 2: -2.0}
    assert {one.action for one in verdicts.values()} == {"penalty"}


def test_a_length_that_the_server_does_not_report_is_named():
    with pytest.raises(ConfigError, match=r"reports no usage .* overlong_mask"):
        found(filters.OverlongPenalty(), [Try(["a"], 1.0, generated=-1)])


def test_what_a_limit_cut_off_is_masked():
    tries = [Try([word], 0.0, word) for word in ("answer", "max_tokens", "max_context", "max_turns")]
    assert list(found(filters.OverlongMask(), tries)) == [1, 2]
    assert list(found(filters.OverlongMask(turns=True), tries)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("x" * 39, True),  # 39 - 32 + 1 = 8 places
        ("x" * 38, False),
        ("ab" * 23, True),  # 46 - 32 + 1 = 15 places, of which 8 begin with a
        ("ab" * 22, False),  # 13 places: 7 and 6
        ("", False),
        ("é\ud800" * 23, True),
    ],
)
def test_repetition_as_treepo_counts_it(text: str, repeated: bool):
    assert repeats(text, 32, 8) is repeated
    assert bool(found(filters.Repetition(), [Try([text.encode("utf-8", "replace").decode()], 1.0)])) is repeated


@given(st.text("ab", max_size=80), st.integers(1, 8), st.integers(2, 8))
def test_repetition_is_what_counting_every_window_finds(text: str, window: int, times: int):
    counts = Counter(text[place : place + window] for place in range(len(text) - window + 1))
    assert repeats(text, window, times) is any(count >= times for count in counts.values())


def test_repetition_in_the_last_turn_or_in_any():
    tries = [Try(["x" * 39, "done"], 1.0), Try(["look", "x" * 39], 1.0)]
    assert list(found(filters.Repetition(), tries)) == [1]
    assert list(found(filters.Repetition(where="any"), tries)) == [0, 1]
    # TreeRL: 50 characters more than 20 times, so 50 + 20 = 70 equal ones
    assert list(found(filters.TreeRLRepetition(), [Try(["x" * 70, "a"], 1.0), Try(["x" * 69], 1.0)])) == [0]


def test_repetition_looks_at_reasoning_and_arguments_too():
    tree = grove([])
    core = tree.core
    model, stop = core.name("m"), core.name("stop")
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "x" * 39}}
    calling = json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}).encode()
    for draw, (message, aside) in enumerate([(said("assistant", "a"), b"x" * 39), (calling, None)]):
        number = core.open(1, [0, draw])
        core.turn(number, message, 0, model, stop, 1, 0, 1, 0, 1, aside)
        core.close(number, "max_turns")
    assert set(dict(filters.Repetition().judge(group(tree)))) == {0, 1}


def test_hostile_text_takes_bounded_time():
    began = time.process_time()
    varied = "".join(chr(0x4E00 + place % 20000) for place in range(1_000_000))
    assert not repeats(varied, 1024, 8)
    assert repeats(varied + "x" * 1100, 1024, 8), "what repeats at the end is found"
    assert repeats("x" * 10_000_000, 32, 8)
    assert time.process_time() - began < 5


def test_a_prompt_that_drifted_from_its_path_drops_who_passes_it():
    tree = grove([Try(["a"], 1.0)])
    core = tree.core
    model, stop = core.name("m"), core.name("stop")
    for draw, policy in enumerate(("bridge", "realign", "fork"), 1):
        number = core.open(1, [0, draw])
        context = drift(core, policy, 0, None if policy == "bridge" else TokenBuffer([1, 2]))
        core.turn(number, said("assistant", policy), 0, model, stop, 1, 0, 1, 0, 1, None, context)
        core.close(number, "answer", policy)
    verdicts = dict(filters.ExactPrefix().judge(group(tree)))
    assert list(verdicts) == [1, 2, 3]
    assert verdicts[2] == Verdict("exact_prefix", "drop", "the prompt of turn 1 drifted from its path (realign)")
    assert list(dict(filters.ExactPrefix(allowed=["bridge", "fork"]).judge(group(tree)))) == [2]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: filters.VoidTurns(action="kill"), "VoidTurns: action must be one of mask, drop"),
        (lambda: filters.VoidTurns(truncated=1), "VoidTurns: truncated must be true or false"),
        (lambda: filters.ZeroVariance(measure="var"), "measure must be one of std, spread"),
        (lambda: filters.ZeroVariance(ddof=2), "ddof must be a whole number from 0 to 1"),
        (lambda: filters.ZeroVariance(threshold=-1), "threshold must be a number"),
        (lambda: filters.ZeroVariance(low=NAN), "low must be a number"),
        (lambda: filters.ZeroVariance(low=0.9, high=0.1), r"low is 0\.9, which is above high"),
        (lambda: filters.OverlongPenalty(buffer=0), "buffer must be a whole number from 1 to 20480"),
        (lambda: filters.OverlongPenalty(factor=0), "factor must be a number above 0"),
        (lambda: filters.Repetition(window=0), "window must be a whole number"),
        (lambda: filters.Repetition(times=1), "times must be a whole number"),
        (lambda: filters.Repetition(where="first"), "where must be one of last, any"),
        (lambda: filters.ExactPrefix(allowed=["shrug"]), "allowed must list some of bridge, realign, fork"),
        (lambda: filters.ExactPrefix(allowed=3), "allowed must list some of"),
    ],
)
def test_an_option_that_cannot_be_is_named(make: object, says: str):
    with pytest.raises(ConfigError, match=says):
        make()
