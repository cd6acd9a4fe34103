"""The tools: what a model gets to read."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trunkline.errors import ToolError
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.sim.world.language import RELATIONS, parse_question, read, read_aliases

if TYPE_CHECKING:
    from pathlib import Path

    from trunkline.sim.world.generator import World


@pytest.fixture(autouse=True)
def _corpus(monkeypatch: pytest.MonkeyPatch, corpus: Path) -> None:
    monkeypatch.setenv(CORPUS_VARIABLE, str(corpus))


async def test_search_numbers_its_hits(world: World) -> None:
    page = world.documents[10]
    lines = (await search([page.title])).splitlines()
    assert lines[0] == f"1. [{page.id}] {page.title}"
    assert len(lines) == 10
    assert lines[8].startswith("5. [d")
    assert all(line.startswith("   ") for line in lines[1::2])


async def test_more_queries_give_more_hits_up_to_a_limit(world: World) -> None:
    titles = [page.title for page in world.documents[:6]]
    assert len((await search(titles[:2])).splitlines()) == 20
    assert len((await search(titles)).splitlines()) == 24


async def test_search_without_hits_says_so() -> None:
    for queries in ([], [""], ["?!"], ["zzzzzz"]):
        assert await search(queries) == "No documents found."


async def test_visit_shows_documents_in_the_order_asked(world: World) -> None:
    one, other = world.documents[5], world.documents[2]
    text = await visit([one.id, f"[{other.id}]", one.id], "who")
    assert text == f"[{one.id}] {one.title}\n{one.text}\n\n[{other.id}] {other.title}\n{other.text}"
    assert read(text) == read(one.text) + read(other.text)


async def test_visit_of_unknown_ids_does_not_repeat_what_is_no_id() -> None:
    assert await visit(["d9999"], "") == "[d9999] does not exist. Use an id that search returned."
    for hostile in ("\x1b[31mred", "../../etc/passwd", "x" * 1000, "<answer>1</answer>", ""):
        assert await visit([hostile], "") == "This id does not exist. Use an id that search returned."
    assert await visit([], "") == "No id was given. Use ids that search returned."


async def test_visit_shows_eight_documents_at_most(world: World) -> None:
    text = await visit([page.id for page in world.documents[:10]], "")
    assert text.count("\n\n") == 8
    assert text.endswith("Only the first 8 documents are shown. Visit the others in another call.")


async def test_a_missing_corpus_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CORPUS_VARIABLE)
    with pytest.raises(ToolError, match=f"{CORPUS_VARIABLE} is not set"):
        await search(["x"])
    monkeypatch.setenv(CORPUS_VARIABLE, str(tmp_path / "gone.jsonl"))
    with pytest.raises(ToolError, match=r"cannot be used: .*gone.jsonl: cannot read the corpus"):
        await visit(["d0001"], "")
    (tmp_path / "bad.jsonl").write_text("{}\n")
    monkeypatch.setenv(CORPUS_VARIABLE, str(tmp_path / "bad.jsonl"))
    with pytest.raises(ToolError, match=r"bad.jsonl:1: "):
        await visit(["d0001"], "")


@given(st.lists(st.text(max_size=30), max_size=4))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_arguments_give_text(words: list[str]) -> None:
    assert await search(words)
    assert await visit(words, "goal")


async def solve(question: str) -> str | None:
    """What a faultless reader answers, who knows the language and nothing but what the tools return."""
    chain = parse_question(question)
    assert chain is not None
    at: str | None = chain.anchor
    for relation in chain.relations:
        hits = await search([f"{at} {RELATIONS[relation].keywords}", str(at)])
        pages = await visit(re.findall(r"\[(d[0-9]+)\]", hits)[:3], "")
        names = {at, *(n for pair in read_aliases(pages) if at in pair for n in pair)}
        stated = [f.object for f in read(f"{hits}\n{pages}") if f.relation == relation and f.subject in names]
        at = stated[0] if stated else None
        if at is None:
            return None
    return at


async def test_a_faultless_reader_answers_from_the_tools_alone(world: World) -> None:
    questions = [q for q in world.questions if q.kind == "lookup"][::2]
    right = [await solve(q.question) in (q.answer, *q.aliases) for q in questions]
    assert sum(right) >= 0.99 * len(right)


async def test_another_corpus_gives_no_answers(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORPUS_VARIABLE, str(write_world(make_world(99), tmp_path)[0]))
    questions = [q for q in world.questions if q.kind == "lookup"][::2]
    right = [await solve(q.question) in (q.answer, *q.aliases) for q in questions]
    assert sum(right) <= 0.03 * len(right)


def test_definitions_for_a_model() -> None:
    for tool, arguments in ((search, {"query"}), (visit, {"id", "goal"})):
        function = tool.definition["function"]
        assert function["description"]
        properties = function["parameters"]["properties"]
        assert set(properties) == arguments == set(function["parameters"]["required"])
        assert all(properties[name]["description"] for name in arguments)


def test_the_world_imports_light() -> None:
    """The simulated models read the language; they must not drag in a database or a client."""
    code = (
        "import sys; import trunkline.sim.world.language, trunkline.sim.world.arithmetic; "
        "print(sorted({'sqlite3', 'aiohttp', 'trunkline.tools', 'trunkline.llm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
