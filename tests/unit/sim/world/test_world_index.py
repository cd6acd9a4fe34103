"""Search: good hits for good queries, and no query that can hurt."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import InputError
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import Document, make_world
from trunkline.sim.world.language import RELATIONS, parse_question, read
from trunkline.sim.world.search import Index, open_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trunkline.sim.world.files import Evidence
    from trunkline.sim.world.generator import World


@pytest.fixture(scope="module")
def index(world: World) -> Iterator[Index]:
    index = Index(world.documents)
    yield index
    index.close()


def test_building_and_searching_are_fast(world: World) -> None:
    start = time.process_time()
    index = Index(world.documents)
    for page in world.documents[:200]:
        index.search([page.title])
    assert time.process_time() - start < 2.0
    assert len(index) == 2000


def test_titles_are_found_first(world: World, index: Index) -> None:
    sample = world.documents[::7]
    first = sum(index.search([page.title], 1)[0].id == page.id for page in sample)
    assert first >= 0.95 * len(sample)


def test_each_hop_of_each_question_can_be_found(world: World, evidence: Evidence, index: Index) -> None:
    """A name and the relation's keywords lead to the page, and the snippet states the fact."""
    hops = found = shown = 0
    for q in world.questions:
        chain = parse_question(q.question)
        if chain is None:
            continue
        at = chain.anchor
        for relation, page in zip(chain.relations, q.support, strict=True):
            hits = index.search([f"{at} {RELATIONS[relation].keywords}"])
            facts = [f for hit in hits for f in read(hit.snippet) if f.relation == relation]
            right = [f.object for f in facts if evidence.name(f.subject) == evidence.name(at)]
            hops += 1
            found += page in {hit.id for hit in hits}
            shown += bool(right)
            at = right[0] if right else evidence.follow(at, relation)[0]
    assert hops > 900
    assert found >= 0.99 * hops
    assert shown >= 0.98 * hops


def test_snippets_are_whole_sentences_of_the_document(world: World, index: Index) -> None:
    for page in world.documents[:100]:
        for hit in index.search([f"{page.title} mayor founder author"]):
            document = index.get(hit.id)
            assert document is not None
            assert hit.title == document.title
            assert all(part in document.text and part.endswith(".") for part in hit.snippet.split(" … "))


def test_queries_take_turns_without_repeats(world: World, index: Index) -> None:
    one, other = world.documents[3].title, world.documents[4].title
    hits = [hit.id for hit in index.search([one, other], 6)]
    alone = [[hit.id for hit in index.search([name], 6)] for name in (one, other)]
    assert hits[:2] == [alone[0][0], alone[1][0]]
    assert len(set(hits)) == len(hits) == 6
    assert [hit.id for hit in index.search([one, one], 6)] == alone[0]
    assert len(index.search([one], 2)) == 2
    assert index.search([one], 0) == []
    assert index.search([], 5) == []


def test_words_count_not_their_case_or_stop_words(world: World, index: Index) -> None:
    title = world.documents[0].title
    expected = [hit.id for hit in index.search([title])]
    assert [hit.id for hit in index.search([f"what is the {title.upper()}?!"])] == expected
    # Nothing but stop words is still a query.
    assert index.search(["the"])


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        '"',
        "'",
        "*",
        "-",
        "()",
        "^",
        ":",
        '""',
        "NEAR/",
        "\x00",
        "\ud800",
        "…",
        "_",
        "{}",
        "+",
        "\\",
        '"*"',
    ],
)
def test_punctuation_finds_nothing(index: Index, query: str) -> None:
    assert index.search([query]) == []


@pytest.mark.parametrize(
    "query",
    [
        'mayor"',
        "title:mayor",
        "mayor AND",
        "NOT mayor",
        "mayor NEAR governs",
        "{title text}: mayor",
        "mayor*",
        '" OR 1=1 --',
        "'; DROP TABLE page; --",
        "mayor\x00governs",
        "x" * 100_000 + " mayor",
        "mayor " * 50_000,
    ],
)
def test_the_query_syntax_cannot_be_reached(index: Index, query: str) -> None:
    assert all(index.get(hit.id) for hit in index.search([query]))
    assert index.search(["mayor governs"])


@given(st.lists(st.text(max_size=60), max_size=4), st.integers(0, 8))
@settings(max_examples=150)
def test_any_text_is_a_query(index: Index, queries: list[str], k: int) -> None:
    hits = index.search(queries, k)
    assert len(hits) <= k
    assert hits == index.search(queries, k)


def test_other_scripts_and_long_sentences() -> None:
    pages = [
        Document("a", "Grüße", "", "Ein Satz über Äpfel und Öl. Noch ein Satz."),
        Document("b", "東京", "", "東京 は 首都。"),
        Document("c", "Long", "", "word " * 400 + "end."),
    ]
    index = Index(pages)
    assert [hit.id for hit in index.search(["äpfel"])] == ["a"]
    assert [hit.id for hit in index.search(["東京"])] == ["b"]
    (hit,) = index.search(["end"])
    assert hit.snippet.endswith(" …")
    assert len(hit.snippet) < 410
    assert index.get("z") is None


def test_threads_may_share_an_index(world: World, index: Index) -> None:
    expected = {page.title: index.search([page.title]) for page in world.documents[:50]}
    index_again = Index(world.documents)
    wrong: list[str] = []

    def work() -> None:
        wrong.extend(title for title, hits in expected.items() if index_again.search([title]) != hits)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_opened_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    corpus, _ = write_world(make_world(1, 60, 0), tmp_path)
    first = open_index(corpus)
    assert open_index(str(corpus)) is first
    write_world(make_world(2, 61, 0), tmp_path)
    os.utime(corpus, ns=(1, 1))
    again = open_index(corpus)
    assert again is not first
    assert len(again) == 61
    with pytest.raises(InputError, match="cannot read the corpus"):
        open_index(tmp_path / "missing.jsonl")
