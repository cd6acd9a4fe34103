"""Majority, weighted vote and best of n: against naive counts, in any order, and where nothing decides."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError, UsageError
from trunkline.scoring.aggregators.aggregate import AGGREGATORS
from trunkline.scoring.aggregators.base import Aggregator, Candidate, Decision
from trunkline.scoring.aggregators.voting import BestOfN, Majority, WeightedVote
from trunkline.tree.answers import normalise

NAN = math.nan
SPELLINGS = st.sampled_from(["Paris", "paris", "the Paris", "Rome", "ROME", "1200", "$1,200", None, "", " "])
AMOUNTS = st.one_of(st.just(NAN), st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.2, 0.3, 1e15]))
REWARDS = st.one_of(st.just(NAN), st.sampled_from([-1.0, 0.0, 0.5, 1.0]))


@st.composite
def tries(draw):
    answers = draw(st.lists(SPELLINGS, max_size=9))
    return [
        Candidate(id=place, answer=answer, confidence=draw(AMOUNTS), reward=draw(REWARDS), value=draw(REWARDS))
        for place, answer in enumerate(answers)
    ]


ALL = [
    *(
        Majority(),
        Majority(contain=True),
        WeightedVote(),
        WeightedVote(by="reward"),
        WeightedVote(by="value", contain=True),
    ),
    *(BestOfN(), BestOfN(by="confidence")),
]


@settings(max_examples=60)
@given(tries(), st.randoms(use_true_random=False))
async def test_the_order_of_the_candidates_makes_no_difference(given_, luck) -> None:
    shuffled = list(given_)
    luck.shuffle(shuffled)
    for aggregator in ALL:
        assert await aggregator.decide("?", given_) == await aggregator.decide("?", shuffled)


@settings(max_examples=60)
@given(tries())
async def test_evidence_holds_every_voter_once_and_every_weight_is_finite(given_) -> None:
    voters = [one.id for one in given_ if one.answer and one.answer.strip()]
    for aggregator in ALL:
        decision = await aggregator.decide("?", given_)
        assert sorted(voter for party in decision.parties for voter in party.voters) == voters
        assert all(math.isfinite(party.weight) and party.weight >= 0 for party in decision.parties)
        weights = [party.weight for party in decision.parties]
        assert weights == sorted(weights, reverse=True)
        assert (decision.answer is None) == (not voters)
        assert decision.method == aggregator.name
        assert not voters or decision.voters


@settings(max_examples=60)
@given(tries())
async def test_majority_and_weights_equal_a_naive_count(given_) -> None:
    voting = [one for one in given_ if one.answer and one.answer.strip()]
    known = [one.confidence for one in voting if not math.isnan(one.confidence)]
    mean = sum(known) / len(known) if known else 1.0
    plain = not any(known)
    for aggregator, weigh in (
        (Majority(), lambda _one: 1.0),
        (WeightedVote(), lambda one: 1.0 if plain else mean if math.isnan(one.confidence) else one.confidence),
    ):
        expected: dict[str, float] = defaultdict(float)
        for one in voting:
            expected[normalise(one.answer)] += weigh(one)
        found = {normalise(party.answer): party.weight for party in (await aggregator.decide("?", given_)).parties}
        assert found == pytest.approx(expected, rel=1e-9)


async def test_the_best_try_wins_then_the_heavier_answer_then_the_first() -> None:
    def made(*pairs):
        return [Candidate(id=place, answer=answer, reward=reward) for place, (answer, reward) in enumerate(pairs)]

    best = BestOfN()
    decision = await best.decide("?", made(("b", 0.5), ("b", 0.1), ("a", 0.9), ("c", NAN)))
    assert (decision.answer, decision.voters, decision.tied) == ("a", (2,), False)
    assert decision.why == "try 2 has the best reward, 0.9"
    decision = await best.decide("?", made(("a", 1.0), ("b", 1.0), ("b", 0.0)))
    assert (decision.answer, decision.tied) == ("b", False), "more tries gave it"
    decision = await best.decide("?", made(("b", 1.0), ("a", 1.0)))
    assert (decision.answer, decision.tied) == ("a", True)
    decision = await best.decide("?", made(("b", -1.0), ("a", -2.0)))
    assert decision.answer == "b", "a negative reward can be the best"
    decision = await best.decide("?", made(("b", NAN), ("b", NAN), ("a", math.inf)))
    assert (decision.answer, decision.why) == ("b", "no try has a reward, so most votes decide")


async def test_a_tie_goes_to_the_first_in_the_order_of_normalised_answers_and_says_so() -> None:
    pair = [Candidate(id=7, answer="The Zebra"), Candidate(id=3, answer="Yak")]
    decision = await Majority().decide("?", pair)
    assert (decision.answer, decision.tied, decision.voters) == ("Yak", True, (3,))
    sums = [
        *(Candidate(id=place, answer="a", confidence=one) for place, one in enumerate((0.1, 0.2))),
        Candidate(id=2, answer="b", confidence=0.3),
    ]
    decision = await WeightedVote().decide("?", sums)
    assert (decision.answer, decision.tied) == ("a", True), "0.1 + 0.2 is 0.3"
    assert [party.weight for party in decision.parties] == [0.3, 0.3]


async def test_who_has_no_weight_counts_as_the_mean_and_where_nobody_has_one_all_are_equal() -> None:
    def made(*amounts):
        answers = "aab"
        return [Candidate(id=i, answer=answers[i], confidence=amount) for i, amount in enumerate(amounts)]

    decision = await WeightedVote().decide("?", made(0.2, NAN, 0.6))
    assert [(party.answer, party.weight) for party in decision.parties] == [("a", 0.6), ("b", 0.6)]
    assert decision.why == "1 of 3 tries have no confidence and count as the mean, 0.4"
    assert (await WeightedVote().decide("?", made(0.1, 0.1, 0.9))).answer == "b"
    for nothing in (NAN, 0.0):
        decision = await WeightedVote().decide("?", made(nothing, nothing, nothing))
        assert (decision.answer, decision.parties[0].weight) == ("a", 2.0)
        assert "so every vote weighs the same" in decision.why


@pytest.mark.parametrize("amount", [-0.5, math.inf, -math.inf, 1e300])
async def test_a_confidence_that_is_none_is_refused(amount: float) -> None:
    with pytest.raises(UsageError, match="candidate 4: its confidence is"):
        await WeightedVote().decide("?", [Candidate(id=4, answer="a", confidence=amount)])


async def test_a_negative_reward_weighs_nothing() -> None:
    pair = [Candidate(id=0, answer="a", reward=-5.0), Candidate(id=1, answer="b", reward=0.1)]
    decision = await WeightedVote(by="reward").decide("?", pair)
    assert [(party.answer, party.weight) for party in decision.parties] == [("b", 0.1), ("a", 0.0)]


@pytest.mark.parametrize("name", ["best", "majority", "weighted"])
async def test_nobody_and_nobody_with_an_answer_are_decided_too(name: str) -> None:
    aggregator = AGGREGATORS[name]()
    assert isinstance(aggregator, Aggregator)
    assert await aggregator.decide("?", []) == Decision(answer=None, method=name)
    silent = [Candidate(id=0, answer=None, confidence=0.5, reward=1.0), Candidate(id=1, answer=" ")]
    decision = await aggregator.decide("?", silent)
    assert (decision.answer, decision.parties, decision.tied, decision.voters) == (None, (), False, ())


async def test_an_answer_of_invisible_characters_is_none_and_no_part_of_the_mean() -> None:
    tries = [
        Candidate(id=0, answer="a", confidence=0.2),
        Candidate(id=1, answer="b"),
        Candidate(id=2, answer="\u200b\u2060", confidence=1.0),
        Candidate(id=3, answer="'"),
    ]
    decision = await WeightedVote().decide("?", tries)
    assert [(party.answer, party.weight) for party in decision.parties] == [("a", 0.2), ("b", 0.2)]
    assert decision.why == "1 of 2 tries have no confidence and count as the mean, 0.2"
    assert (await Majority().decide("?", tries[2:])).answer is None


@pytest.mark.parametrize("aggregator", [WeightedVote(), BestOfN(by="confidence")], ids=["weighted", "best"])
async def test_what_is_no_number_or_no_answer_is_named(aggregator) -> None:
    for wrong in ("high", None, 10**400):
        with pytest.raises(UsageError, match="candidate 3: its confidence must be a number, not "):
            await aggregator.decide("?", [Candidate(id=3, answer="a", confidence=wrong)])
    for each in (aggregator, Majority()):
        with pytest.raises(UsageError, match="candidate 3: its answer must be text or None, not 5"):
            await each.decide("?", [Candidate(id=3, answer=5)])


async def test_one_id_for_two_is_refused() -> None:
    pair = [Candidate(id=2, answer="a"), Candidate(id=2, answer="b")]
    for aggregator in ALL:
        with pytest.raises(UsageError, match="two candidates have the id 2"):
            await aggregator.decide("?", pair)


@pytest.mark.parametrize("name", ["best", "majority", "weighted"])
def test_options_that_cannot_be_are_named(name: str) -> None:
    kind = AGGREGATORS[name]
    with pytest.raises(ConfigError, match="contain must be true or false, not 'yes'"):
        kind(contain="yes")
    with pytest.raises(ConfigError, match="same must be a function of two answers, not 'x'"):
        kind(same="x")
    if name != "majority":
        with pytest.raises(ConfigError, match="by must be one of confidence, reward, value, not 'luck'"):
            kind(by="luck")
