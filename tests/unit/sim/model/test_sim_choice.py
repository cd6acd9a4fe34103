"""The generative model by itself: masses, temperature, positions, and log-probs over tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.sim.model import generation as drafts
from trunkline.sim.model.choices import (
    PRESETS,
    Choice,
    Dials,
    Point,
    decide,
    options,
    point_success,
    temper,
    truncate,
    with_dials,
)
from trunkline.sim.model.generation import Draft, Mind, Sampling
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.sim.server.sampling import END
from trunkline.sim.world.names import Draws

NAMES = ["Ada Venn", "Ada Venner", "Ada", "Bo Larn", "Bo", "Port Arlen", "1885", "1889", "Zed"]
MASSES = st.lists(st.floats(0.001, 1), min_size=1, max_size=6).map(lambda ms: [m / sum(ms) for m in ms])


@given(MASSES, st.floats(0.05, 2))
@settings(max_examples=80)
def test_temperature_keeps_order_and_sum(masses, temperature):
    hot = temper(masses, temperature)
    assert math.isclose(sum(hot), 1, rel_tol=1e-9)
    for i, a in enumerate(masses):
        for j, b in enumerate(masses):
            if a > b:
                assert hot[i] >= hot[j]
    if abs(temperature - 1) < 1e-9:
        assert hot == pytest.approx(masses)


def test_temperature_zero_takes_the_first_largest():
    assert temper([0.2, 0.4, 0.4], 0) == [0, 1, 0]


@given(MASSES, st.floats(0.01, 1))
@settings(max_examples=80)
def test_top_p_keeps_at_least_its_mass(masses, top_p):
    kept = truncate(masses, top_p)
    assert math.isclose(sum(kept), 1, rel_tol=1e-9)
    assert sum(m for m, k in zip(masses, kept, strict=True) if k > 0) >= top_p - 1e-9


@given(
    st.integers(0, 5000),
    st.integers(1, 4),
    st.sampled_from(sorted(PRESETS)),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=150)
def test_options_are_a_distribution(key, hops, preset, hop, action):
    dials = PRESETS[preset]
    point = Point(f"q{key}", min(hop, hops - 1), hops, action, True)
    masses = options(point, "right", ["a", "b", "right", "a", "c", "d", "e", "f"], dials)
    assert math.isclose(sum(masses.values()), 1, rel_tol=1e-9)
    assert len(masses) <= dials.wrong_options + 1
    assert masses.get("right", 0) == pytest.approx(point_success(point, dials)[0])
    forced = options(point, None, ["a", "b"], dials)
    assert math.isclose(sum(forced.values()), 1, rel_tol=1e-9)
    assert options(point, "right", [], dials) == {"right": 1.0}
    assert options(point, None, [], dials) == {}


@pytest.mark.parametrize("position", ["uniform", "early", "late", "single"])
@pytest.mark.parametrize("misbelief", [0.0, 0.5])
def test_position_and_misbelief_leave_the_mean_success_unchanged(position, misbelief):
    dials = Dials(position=position, shared_misbelief=misbelief, skill=0.5)
    plain = Dials(position="uniform", shared_misbelief=0.0, skill=0.5)

    def mean(some, hops):
        total = 0.0
        for key in range(1500):
            points = [Point(f"q{key}", hop, hops, action, True) for hop in range(hops) for action in (True, False)]
            total += math.prod(point_success(point, some)[0] for point in points)
        return total / 1500

    assert mean(dials, 3) == pytest.approx(mean(plain, 1), abs=0.03)


def test_early_and_late_put_the_weight_at_the_ends():
    for key in range(200):
        for preset, strong, weak in (("early-decisive", 0, 3), ("late-decisive", 3, 0)):
            dials = with_dials(preset, {"shared_misbelief": 0.0})
            at = [point_success(Point(f"q{key}", hop, 4, False, True), dials)[0] for hop in range(4)]
            assert at[strong] <= at[weak]
            assert at[strong] == min(at)


def test_null_has_one_even_choice_in_a_question():
    for key in range(200):
        points = [Point(f"q{key}", hop, 3, action, True) for hop in range(3) for action in (True, False)]
        at = [point_success(point, PRESETS["null"])[0] for point in points]
        assert sorted(at) == [0.5, 1, 1, 1, 1, 1]


def test_full_skill_makes_no_error():
    for preset in PRESETS:
        dials = with_dials(preset, {"skill": 1.0})
        assert all(point_success(Point(f"q{key}", 0, 1, False, True), dials)[0] == 1 for key in range(100))


@given(
    st.sets(st.sampled_from(NAMES), min_size=2, max_size=6),
    MASSES,
    st.integers(0, 5),
    st.sampled_from([".", ' x"]']),
)
@settings(max_examples=120)
def test_the_log_probs_of_a_choice_add_up_to_its_mass(names, masses, pick, after):
    names = sorted(names)
    masses = (masses * 6)[: len(names)]
    masses = tuple(mass / sum(masses) for mass in masses)
    pick %= len(names)
    draft = Draft()
    draft.say("So it is")
    draft.pieces.append(Choice(tuple(f" {name}" for name in names), masses, pick))
    draft.say(after)
    tokens = drafts.tokens(draft, END)
    assert sum(token.logprob for token in tokens) == pytest.approx(math.log(masses[pick]), abs=1e-6)
    assert default_bpe().decode([t.id for t in tokens]).decode() == draft.text() + END
    assert [t.id for t in tokens] == drafts.ids(draft, END)
    for token in tokens:
        if token.branches:
            assert sum(math.exp(value) for _, value in token.branches) == pytest.approx(1, abs=1e-6)
            assert dict(token.branches)[token.id] == token.logprob


def test_the_variation_of_ordinary_tokens_is_a_distribution():
    for number in range(256):
        own, others = drafts.variation(number)
        assert -0.05 < own < 0
        assert math.exp(own) + sum(math.exp(value) for _, value in others) <= 1 + 1e-9
        assert len({token for token, _ in others}) == len(others) >= 20
        assert all(value < own for _, value in others)


def mind(seed, dials=None, temperature=1.0):
    return Mind("test", b"digest", dials or PRESETS["default"], Sampling(seed, temperature))


def test_draws_follow_the_masses():
    masses = {" a": 0.5, " b": 0.3, " c": 0.2}
    count = dict.fromkeys(masses, 0)
    for seed in range(4000):
        count[Draft().choose(mind(seed), masses).chosen] += 1
    for option, mass in masses.items():
        assert count[option] / 4000 == pytest.approx(mass, abs=0.03)


def test_given_text_restricts_a_choice_to_what_agrees():
    masses = {" Ada Venn": 0.2, " Ada Lorn": 0.6, " Bo Larn": 0.2}
    count = dict.fromkeys(masses, 0)
    for seed in range(3000):
        draft = Draft("It is Ada ")
        draft.say("It is")
        count[draft.choose(mind(seed), masses).chosen] += 1
        draft.say(".")
        assert draft.text() in {"Venn.", "Lorn."}
        logs = [token.logprob for token in drafts.tokens(draft, END) if token.branches]
        assert math.exp(sum(logs)) == pytest.approx(0.25 if draft.text() == "Venn." else 0.75)
    assert count[" Bo Larn"] == 0
    assert count[" Ada Venn"] / 3000 == pytest.approx(0.25, abs=0.03)


def test_given_text_that_settles_a_choice():
    draft = Draft(" Ada Venn and")
    choice = draft.choose(mind(1), {" Ada": 0.9, " Ada Venn": 0.05, " Bo": 0.05})
    assert choice.chosen == " Ada Venn"
    draft.say(" and more")
    assert draft.text() == " more"


def test_foreign_text_is_gone_on_from():
    draft = Draft("zzz")
    draft.say("abc")
    assert draft.text() == "abc"


def test_decide_at_temperature_zero_ignores_the_draws():
    masses = {"a": 0.4, "b": 0.6}
    choices = [decide(masses, Draws(seed), 0.0, 1.0) for seed in range(20)]
    assert {choice.chosen for choice in choices} == {"b"}
    assert choices[0].masses == (0.4, 0.6)


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("defautl", {}, "no preset 'defautl'"),
        ("default", {"skil": 1}, "no dial 'skil'"),
        ("default", {"skill": "1.5"}, "skill"),
        ("default", {"skill": float("nan")}, "finite"),
        ("default", {"position": "middle"}, "positions are uniform"),
    ],
)
def test_bad_dials_are_named(preset, changes, message):
    with pytest.raises(ConfigError, match=message):
        with_dials(preset, changes)


def test_dials_from_text():
    assert with_dials("default", {"skill": "0.25", "wrong_options": "2"}).wrong_options == 2
