"""The grammar: whatever it words, it reads back, and nothing else."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.sim.world.language import (
    ANSWER_KIND,
    KINDS,
    RELATIONS,
    Chain,
    Fact,
    alias_sentence,
    ask,
    ask_variants,
    parse_question,
    read,
    read_aliases,
    sentence,
)

WORD = st.from_regex(r"[A-Z][a-z]{1,9}", fullmatch=True)
NAMES = st.lists(WORD, min_size=1, max_size=6).map(" ".join)
YEARS = st.integers(1000, 2999).map(str)
RELATION = st.sampled_from(sorted(RELATIONS))


@st.composite
def facts(draw: st.DrawFn) -> Fact:
    relation = draw(RELATION)
    return Fact(draw(NAMES), relation, draw(YEARS if ANSWER_KIND[relation] == "date" else NAMES))


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Chains whose relations fit together, as the questions of a world do."""
    relations = [draw(RELATION)]
    for _ in range(draw(st.integers(0, 3))):
        options = [r.name for r in RELATIONS.values() if r.subject == ANSWER_KIND[relations[-1]]]
        if not options:
            break
        relations.append(draw(st.sampled_from(sorted(options))))
    return Chain(draw(NAMES), tuple(relations))


# Text that may stand beside a sentence without becoming part of it: no capital letter can join a name.
NOISE = st.text(st.sampled_from("abc xyz-*>|#:;,0 \t\n"), max_size=30)


@given(facts(), st.integers(0, 20))
def test_a_fact_survives_every_wording(fact: Fact, variant: int) -> None:
    assert read(sentence(fact, variant)) == (fact,)
    assert read_aliases(sentence(fact, variant)) == ()


@given(st.lists(st.tuples(facts(), st.integers(0, 5), NOISE), max_size=6))
def test_facts_are_read_in_order_among_other_text(parts: list[tuple[Fact, int, str]]) -> None:
    text = "".join(f"{noise}\n* {sentence(fact, variant)}" for fact, variant, noise in parts)
    assert read(text) == tuple(fact for fact, _, _ in parts)
    assert read(text.replace("\n", "\\n")) == read(text)


@given(facts(), st.integers(0, 5), st.data())
def test_a_sentence_that_was_cut_is_not_read(fact: Fact, variant: int, data: st.DataObject) -> None:
    whole = sentence(fact, variant)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert read(cut) == ()
    assert read(cut + "...") == ()
    assert read(cut + " …") == ()


@given(chains(), st.integers(0, 31), NOISE, NOISE)
def test_a_question_survives_every_wording_and_any_prompt(chain: Chain, variant: int, before: str, after: str) -> None:
    question = ask(chain, variant)
    assert parse_question(question) == chain
    assert parse_question(f"{before}\nQuestion: {question}\n{after}") == chain
    assert parse_question(f"<question>{question}</question>") == chain
    assert read(question) == ()


@given(chains(), chains())
def test_the_last_question_counts(first: Chain, second: Chain) -> None:
    assert parse_question(f"Example: {ask(first, 0)}\nNow: {ask(second, 1)}") == second


@given(NAMES, NAMES)
def test_aliases_survive(name: str, alias: str) -> None:
    text = f"- {alias_sentence(name, alias)}\n"
    assert read_aliases(text) == ((name, alias),)
    assert read(text) == ()


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    assert all(fact.relation in RELATIONS and fact.subject in text and fact.object in text for fact in read(text))
    assert all(name in text and alias in text for name, alias in read_aliases(text))
    chain = parse_question(text)
    assert chain is None or (chain.anchor in text and set(chain.relations) <= set(RELATIONS))


def test_texts_without_question_or_fact() -> None:
    for text in ("", "Hello.", "Who is there?", "Who is the author of?", "the author of Ada Venn"):
        assert parse_question(text) is None
        assert read(text) == ()


def test_a_date_never_stands_where_a_name_belongs() -> None:
    assert read("Ada Venn was born in 1900.") == ()
    assert read("Ada Venn was born in the year Port Arlen.") == ()
    assert read("1900 was born in Port Arlen.") == ()


def test_every_relation_has_wordings_that_differ() -> None:
    assert len(RELATIONS) >= 14
    everything = [s for r in RELATIONS.values() for s in r.sentences]
    phrases = [p for r in RELATIONS.values() for p in r.phrases]
    assert len(set(everything)) == len(everything)
    assert len(set(phrases)) == len(phrases)
    for name, relation in RELATIONS.items():
        assert len(relation.sentences) >= 2
        assert relation.subject in KINDS
        assert relation.object in {*KINDS, "date"}
        assert ANSWER_KIND[name] == relation.object
        for template in relation.sentences:
            assert set(relation.keywords.split()) & set(template.lower().rstrip(".").split())


def test_all_question_wordings_are_different() -> None:
    chain = Chain("Ada Venn", ("spouse", "works_for", "based_in"))
    assert len({ask(chain, variant) for variant in range(ask_variants(3))}) == ask_variants(3) == 16


def test_unknown_relations_are_named() -> None:
    with pytest.raises(ConfigError, match="'eats'"):
        sentence(Fact("Ada Venn", "eats", "Port Arlen"), 0)
    with pytest.raises(ConfigError, match="'eats'"):
        ask(Chain("Ada Venn", ("eats",)), 0)
    with pytest.raises(ConfigError, match="at least one"):
        ask(Chain("Ada Venn", ()), 0)


@pytest.mark.parametrize(
    "text",
    [
        "Aa " * 30_000,
        "A" + "a" * 90_000,
        "Who is " + "the author of " * 8_000,
        "The author of Ada " * 5_000,
        "Aa" * 45_000,
        "Who is " * 15_000,
    ],
)
def test_hostile_text_is_read_in_linear_time(text: str) -> None:
    start = time.process_time()
    assert read(text) == ()
    assert parse_question(text) is None
    assert read_aliases(text) == ()
    assert time.process_time() - start < 2.0
