"""The files of a world: the same bytes for the same seed, no answers in the corpus, consistent renaming."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from trunkline.errors import ConfigError, InputError
from trunkline.sim.world.files import (
    CORPUS,
    QUESTIONS,
    Evidence,
    permutation,
    read_corpus,
    read_questions,
    rename,
    write_world,
)
from trunkline.sim.world.generator import make_world
from trunkline.sim.world.language import read

if TYPE_CHECKING:
    from pathlib import Path

    from trunkline.sim.world.generator import World

CORPUS_DIGEST = "a8d8ee101f6515a53768f359f5e93bb583d8bc6171f31bf927b78b857b7eaecf"
QUESTIONS_DIGEST = "542ad2e9ec64c2305abb3a4c294b1e97bfa3e1fe6d5e7009a7193f75eef3ba5a"

SCRIPT = """
import sys
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
write_world(make_world(int(sys.argv[1]), 300, 60), sys.argv[2])
"""


def written(folder: Path) -> tuple[bytes, bytes]:
    assert sorted(path.name for path in folder.iterdir()) == [CORPUS, QUESTIONS]
    return (folder / CORPUS).read_bytes(), (folder / QUESTIONS).read_bytes()


def test_same_seed_same_bytes_in_any_process(tmp_path: Path) -> None:
    write_world(make_world(5, 300, 60), tmp_path / "here")
    write_world(make_world(6, 300, 60), tmp_path / "other")
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", SCRIPT, "5", str(tmp_path / hash_seed)]
        subprocess.run(command, env=environment, check=True, timeout=60)
    here = written(tmp_path / "here")
    assert here == written(tmp_path / "1") == written(tmp_path / "2")
    other = written(tmp_path / "other")
    assert here[0] != other[0]
    assert here[1] != other[1]


def test_the_default_world_is_frozen(world: World, tmp_path: Path) -> None:
    """Results of different versions are compared on this world: a change here needs a new world version."""
    corpus, questions = write_world(world, tmp_path)
    assert hashlib.sha256(corpus.read_bytes()).hexdigest() == CORPUS_DIGEST
    assert hashlib.sha256(questions.read_bytes()).hexdigest() == QUESTIONS_DIGEST


def test_what_is_written_can_be_read(world: World, tmp_path: Path) -> None:
    corpus, questions = write_world(world, tmp_path / "new" / "folder")
    bare = tuple(msgspec.structs.replace(page, kind="") for page in world.documents)
    assert read_corpus(corpus) == bare
    assert read_questions(questions) == world.questions


def test_the_form_of_the_lines(world: World, corpus: Path) -> None:
    pages = [json.loads(line) for line in corpus.read_text().splitlines()]
    rows = [json.loads(line) for line in corpus.with_name(QUESTIONS).read_text().splitlines()]
    assert all(set(page) == {"id", "title", "text"} for page in pages)
    for row, q in zip(rows, world.questions, strict=True):
        assert set(row) == {"id", "question", "answer", "metadata"}
        assert row["answer"] == [q.answer, *q.aliases]
        assert row["metadata"] == {"hops": q.hops, "kind": q.kind, "support": list(q.support)}
    text = corpus.read_text()
    assert not any(q.question in text for q in world.questions)


def test_an_unwritable_folder_is_one_error_and_leaves_nothing(world: World, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="cannot write the world here"):
        write_world(world, file / "below")
    blocked = tmp_path / "blocked"
    (blocked / CORPUS).mkdir(parents=True)
    with pytest.raises(InputError, match="cannot write the world here"):
        write_world(world, blocked)
    assert [path.name for path in blocked.iterdir()] == [CORPUS]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "corpus.jsonl: the file is empty"),
        ("\n\n", "the file is empty"),
        ('{"id":"a","title":"b","text":"c"}\n{"id":', r"corpus.jsonl:2: not a line"),
        ('{"id":"a","title":"b"}', r"corpus.jsonl:1: .*text"),
        ('{"id":1,"title":"b","text":"c"}', r"corpus.jsonl:1: .*id"),
        ("[]", r"corpus.jsonl:1: "),
        ('{"id":"a","title":"b","text":"c"}\n\n{"id":"a","title":"b","text":"c"}', r":3: the id 'a' appears"),
    ],
)
def test_broken_files_are_named_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / CORPUS
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_corpus(path)


def test_bytes_that_are_not_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / QUESTIONS
    path.write_bytes(b'{"id":"\xff"}\n')
    with pytest.raises(InputError, match=r"questions.jsonl:1: "):
        read_questions(path)
    with pytest.raises(InputError, match="cannot read the file"):
        read_questions(tmp_path / "missing.jsonl")


def test_permuted_names_permute_the_answers(world: World) -> None:
    mapping = permutation(world, 3)
    assert sorted(mapping) == sorted(mapping.values())
    renamed = rename(world, mapping)
    evidence = Evidence(renamed.documents)
    moved = 0
    for old, new in zip(world.questions, renamed.questions, strict=True):
        assert new.answer == mapping.get(old.answer, old.answer)
        assert new.aliases == tuple(mapping[alias] for alias in old.aliases)
        assert evidence.prove(new.question).answer == new.answer
        moved += new.answer != old.answer
    for old_page, new_page in zip(world.documents, renamed.documents, strict=True):
        assert (new_page.id, new_page.title) == (old_page.id, mapping[old_page.title])
        assert len(read(new_page.text)) == len(read(old_page.text))
    named = [q for q in world.questions if q.kind == "lookup" and not q.answer.isdigit()]
    assert moved > 0.98 * len(named)


def test_renaming_and_back_gives_the_same_world(world: World) -> None:
    mapping = permutation(world, 4)
    back = {new: old for old, new in mapping.items()}
    assert rename(rename(world, mapping), back) == world
    assert rename(world, {}) == world


def test_a_name_inside_a_longer_name_stays(world: World) -> None:
    page = world.documents[0]
    longer = rename(world, {page.title: "Quite Another Name", world.documents[1].title: "Another Name"})
    again = rename(longer, {"Another Name": "Third Name"})
    assert again.documents[0].title == "Quite Another Name"
    assert again.documents[1].title == "Third Name"


def test_impossible_renamings_are_refused(world: World) -> None:
    one, other = world.documents[0].title, world.documents[1].title
    with pytest.raises(ConfigError, match="nothing of this name"):
        rename(world, {"Nobody At All": "Somebody"})
    with pytest.raises(ConfigError, match="would be called"):
        rename(world, {one: other})
    with pytest.raises(ConfigError, match="capitalised"):
        rename(world, {one: "not a name"})
