"""Worlds: every question has one answer, which the corpus proves and the question does not give away."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError, InputError
from trunkline.sim.world import arithmetic
from trunkline.sim.world.files import Evidence
from trunkline.sim.world.generator import FEWEST_DOCUMENTS, Document, make_world
from trunkline.sim.world.language import ANSWER_KIND, RELATIONS, alias_sentence, parse_question, read, read_aliases
from trunkline.sim.world.names import Draws, Namer

if TYPE_CHECKING:
    from trunkline.sim.world.generator import World


def test_default_sizes(world: World) -> None:
    assert len(world.documents) == 2000
    assert len(world.questions) == 500
    assert len({page.id for page in world.documents}) == 2000
    assert len({page.title for page in world.documents}) == 2000
    assert len({q.id for q in world.questions}) == 500
    assert len({q.question for q in world.questions}) == 500
    kinds = Counter(q.kind for q in world.questions)
    assert kinds == {"lookup": 425, "arithmetic": 75}
    hops = Counter(q.hops for q in world.questions if q.kind == "lookup")
    assert set(hops) == {1, 2, 3, 4}
    assert min(hops.values()) >= 40
    assert set(Counter(page.kind for page in world.documents)) == {r.subject for r in RELATIONS.values()}


def test_a_world_is_made_quickly() -> None:
    start = time.process_time()
    make_world(1)
    assert time.process_time() - start < 3.0


def test_every_question_is_provable_from_the_corpus_alone(world: World, evidence: Evidence) -> None:
    for q in world.questions:
        proof = evidence.prove(q.question)
        assert proof.answer == q.answer
        if q.kind == "lookup":
            assert len(proof.stated_in) == q.hops == len(q.support)
            for page, places in zip(q.support, proof.stated_in, strict=True):
                assert page in places


def test_answers_are_unique(world: World, evidence: Evidence) -> None:
    """No two documents contradict each other: collect what is stated without the help of ``Evidence``."""
    stated: dict[tuple[str, str], set[str]] = {}
    for page in world.documents:
        for fact in read(page.text):
            key = evidence.name(fact.subject), fact.relation
            stated.setdefault(key, set()).add(evidence.name(fact.object))
    assert all(len(objects) == 1 for objects in stated.values())
    assert len(stated) > 6000
    assert {relation for _, relation in stated} == set(RELATIONS)


def test_answers_do_not_stand_in_their_questions(world: World) -> None:
    for q in world.questions:
        for answer in (q.answer, *q.aliases):
            if q.kind == "lookup":
                assert answer.casefold() not in q.question.casefold()
            else:
                assert answer not in q.question.rstrip("?").split()


def test_answers_have_the_kind_that_was_asked_for(world: World, evidence: Evidence) -> None:
    kind = {page.title: page.kind for page in world.documents}
    for q in world.questions:
        chain = parse_question(q.question)
        if q.kind == "arithmetic":
            steps = arithmetic.parse(q.question)
            assert chain is None
            assert steps is not None
            assert len(steps) - 1 == q.hops
            continue
        assert chain is not None
        assert kind.get(q.answer, "date") == ANSWER_KIND[chain.relations[-1]]
        assert kind[evidence.name(chain.anchor)] == RELATIONS[chain.relations[0]].subject
        for one, following in zip(chain.relations, chain.relations[1:], strict=False):
            assert RELATIONS[one].object == RELATIONS[following].subject


def test_no_answer_is_frequent_enough_to_guess(world: World) -> None:
    answers = Counter(q.answer for q in world.questions)
    assert answers.most_common(1)[0][1] <= 0.03 * len(world.questions)


def test_aliases_are_used_in_documents_questions_and_answers(world: World, evidence: Evidence) -> None:
    aliases = {alias: name for page in world.documents for name, alias in read_aliases(page.text)}
    titles = {page.title for page in world.documents}
    assert 100 < len(aliases) < 600
    assert not titles & set(aliases)
    for page in world.documents:
        assert all(name == page.title for name, _ in read_aliases(page.text))
    used = {name for page in world.documents for f in read(page.text) for name in (f.subject, f.object)}
    assert used & set(aliases)
    chains = [chain for q in world.questions if (chain := parse_question(q.question))]
    assert any(chain.anchor in aliases for chain in chains)
    answers = [q for q in world.questions if q.aliases]
    assert answers
    for q in answers:
        assert {aliases[alias] for alias in q.aliases} == {q.answer}


def test_decoys_exist(world: World) -> None:
    """Names that share a word within a kind, pages that warn of them, and mentions that mean nothing."""
    words = Counter((page.kind, word) for page in world.documents for word in set(page.title.split()))
    for kind in ("person", "place", "organisation", "work", "event"):
        pages = [page for page in world.documents if page.kind == kind]
        alike = [p for p in pages if any(words[kind, word] > 1 for word in p.title.split() if word != "The")]
        assert len(alike) > 0.3 * len(pages)
    assert sum("confused with" in p.text or "mix this entry up" in p.text for p in world.documents) > 200
    titles = {page.title for page in world.documents}
    in_passing = 0
    for page in world.documents:
        named = {name for f in read(page.text) for name in (f.subject, f.object)}
        for sentence in page.text.split(". "):
            _, _, name = sentence.rstrip(".").rpartition(" points to ")
            other = name.removesuffix(" without saying why")
            in_passing += other in titles and other != page.title and other not in named
    assert in_passing > 100


def test_pages_state_facts_about_their_entity_and_some_of_others(world: World, evidence: Evidence) -> None:
    about_others = 0
    for page in world.documents:
        facts = read(page.text)
        subjects = {evidence.name(fact.subject) for fact in facts}
        about_others += bool(subjects - {page.title})
        assert all(page.title in (evidence.name(f.subject), evidence.name(f.object)) for f in facts)
        assert page.title in page.text
    assert about_others > 1000


def test_seeds_make_different_worlds(world: World) -> None:
    other = make_world(1)
    shared = {page.title for page in world.documents} & {page.title for page in other.documents}
    assert len(shared) < 400
    assert not {q.question for q in world.questions} & {q.question for q in other.questions}


@given(st.integers(-(2**63), 2**63), st.integers(FEWEST_DOCUMENTS, 150), st.integers(0, 20))
@settings(max_examples=15)
def test_small_worlds_are_sound(seed: int, documents: int, questions: int) -> None:
    world = make_world(seed, documents, questions)
    evidence = Evidence(world.documents)
    assert len(world.documents) == documents
    assert len(world.questions) == questions
    for q in world.questions:
        assert evidence.prove(q.question).answer == q.answer
    assert make_world(seed, documents, questions) == world


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 60 documents, not 10"):
        make_world(0, 10)
    with pytest.raises(ConfigError, match="-1 questions"):
        make_world(0, 100, -1)
    with pytest.raises(ConfigError, match=r"60 documents give only \d+ different questions of the"):
        make_world(0, 60, 20_000)


def test_twins_keep_a_word_until_none_is_left() -> None:
    namer = Namer(Draws("twins"))
    for kind in ("region", "organisation", "event", "work", "person"):
        first = namer.fresh(kind)
        assert set(namer.twin(first, kind).split()) & set(first.split())
    region = namer.fresh("region")
    twins = [namer.twin(region, "region") for _ in range(8)]
    assert len({region, *twins}) == 9
    assert not set(twins[-1].split()) & set(region.split()) - {
        "North",
        "South",
        "Province",
        "Uplands",
        "Coast",
    }


def test_names_run_out_with_a_clear_error() -> None:
    namer = Namer(Draws("few"))

    def take_all() -> None:
        for _ in range(100_000):
            namer.fresh("region")

    with pytest.raises(ConfigError, match="no region names are left"):
        take_all()


def test_prove_needs_only_the_documents(world: World) -> None:
    q = next(q for q in world.questions if q.hops == 3 and q.kind == "lookup")
    assert Evidence(world.documents).prove(q.question).answer == q.answer
    rest = [page for page in world.documents if page.title != q.answer and page.id not in q.support]
    with pytest.raises(InputError, match="no document states"):
        Evidence([Document(p.id, p.title, p.kind, "") if q.answer in p.text else p for p in rest]).prove(q.question)
    with pytest.raises(InputError, match="no question"):
        Evidence([]).prove("Why?")


def test_contradictions_are_found() -> None:
    one = Document("d1", "Ada Venn", "", "Ada Venn was born in Port Arlen.")
    other = Document("d2", "Port Moor", "", "Port Moor is the birthplace of Ada Venn.")
    with pytest.raises(InputError, match="document d2: born_in of Ada Venn is Port Arlen and Port Moor"):
        Evidence([one, other])
    with pytest.raises(InputError, match="a name of Ada Venn and of Port Moor"):
        Evidence(
            [
                Document("d1", "Ada Venn", "", alias_sentence("Ada Venn", "Old Venn")),
                Document("d2", "Port Moor", "", alias_sentence("Port Moor", "Old Venn")),
            ]
        )


def test_draws_are_the_same_everywhere() -> None:
    """Fixed numbers: a change here would change every world."""
    draws = Draws(7, "names")
    assert [draws.below(1000) for _ in range(6)] == [502, 553, 707, 659, 289, 518]
    assert Draws(7, "names").shuffled(range(6)) == [5, 0, 1, 4, 2, 3]
    assert Draws(7, "names").word() != Draws("7", "names").word()


@given(st.integers(), st.integers(1, 2**40))
def test_draws_stay_in_range(seed: int, n: int) -> None:
    draws = Draws(seed)
    assert all(0 <= draws.below(n) < n for _ in range(20))
    assert all(0 <= draws.random() < 1 for _ in range(20))
    assert sorted(draws.shuffled(range(50))) == list(range(50))
