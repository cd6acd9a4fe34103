"""Every page of the documentation runs as printed; what cannot run here is at least well formed."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import doc_pages
import pytest

from trunkline.cli.app import app

PAGES = {doc_pages.name_of(page): page for page in doc_pages.pages()}


def has_steps(page: Path) -> bool:
    try:
        return any(block.runs for block in doc_pages.blocks(page.read_text("utf-8")))
    except ValueError:
        return True  # and its test says what is wrong


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if has_steps(page)])
def test_a_page_runs_as_printed(name: str, tmp_path: Path):
    folder = tmp_path / "page"
    folder.mkdir()
    done = doc_pages.run(PAGES[name], folder, port=doc_pages.free_port())
    assert done.code == 0, done.output
    assert not list(doc_pages.missing_lines(doc_pages.blocks(PAGES[name].read_text("utf-8")), done)), done.output


def unknown_options(text: str) -> list[str]:
    """Options in a page's commands of trunkline that the command does not have."""
    unknown = []
    for line in text.replace("\\\n", " ").splitlines():
        command: click.Command | None = None
        for word in shlex.split(line, comments=True):
            if word == "trunkline":
                command = app
            elif isinstance(command, click.Group):
                command = command.get_command(click.Context(command), word)
                assert command is not None, line
            elif word in {"|", "&&", "||", ";", "&"}:
                command = None
            elif word.startswith("--") and command is not None and command.name != "serve":
                flags = {flag for given in command.params for flag in (*given.opts, *given.secondary_opts)}
                if word.partition("=")[0] not in flags | {"--help"}:
                    unknown.append(f"{command.name} {word}")
    return unknown


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_does_not_run_is_well_formed_and_has_its_reason(name: str):
    readers = {"python": ast.parse, "json": json.loads, "toml": tomllib.loads}
    for block in doc_pages.blocks(PAGES[name].read_text("utf-8")):
        # Files too: no command of the page may read them.
        readers.get(block.language, str)(block.text)
        if "not run" not in block.marks:
            continue
        assert len(block.marks["not run"]) >= 10, "say why"
        if block.language == "sh":
            checked = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True)
            assert checked.returncode == 0, checked.stderr
            assert unknown_options(block.text) == []


def test_a_page_that_breaks_says_where_and_its_background_work_ends(tmp_path: Path):
    steps = (
        '```python title="a/one.py"\nprint(41 + 1)\n```\n\n'
        "```sh\nsleep 600 &\npython a/one.py\nfalse\necho after\n```\n"
    )
    folder = tmp_path / "page"
    folder.mkdir()
    made = tmp_path / "of-this-test.md"
    made.write_text(steps, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doc_pages, "ROOT", tmp_path)
        done = doc_pages.run(made, folder, port=doc_pages.free_port())
    assert done.code == 1
    assert re.search(r"^42$", done.output, re.MULTILINE)
    assert "the block at of-this-test.md:5 ended with code 1" in done.output
    assert "after" not in done.output


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("<!-- ouput -->\n```text\n1\n```\n", "right after its marks"),
        ("<!-- not run -->\n\n```sh\nls\n```\n", "right after its marks"),
        ("<!-- output -->\n```sh\nls\n```\n", "output says nothing"),
        ("<!-- needs: torch -->\n```text\n1\n```\n", "needs says nothing"),
        ("```rust\n```\n", "is no fence"),
        ("```sh\nls\n", "not closed"),
        (" ```sh\nls\n ```\n", "at the first column"),
    ],
)
def test_a_mark_that_would_change_nothing_is_refused(text: str, wrong: str):
    with pytest.raises(ValueError, match=wrong):
        doc_pages.blocks(text)


def test_a_line_of_output_that_was_not_printed_is_missing():
    text = (
        "<!-- needs: nowhere -->\n```sh\necho 5 apples\n```\n\n<!-- output -->\n```text\n5 apples\n```\n\n"
        "```sh\necho 12 pears of 30; echo 1 [1.0]\n```\n\n"
        "<!-- output -->\n```text\n14 pears of 31\n12 plums of…\n1 [1.0]\n2 [1.0]\n```\n"
    )
    done = doc_pages.Outcome(0, "12 pears  of 30\n1 [1.0]\n", [], frozenset({2}))
    assert list(doc_pages.missing_lines(doc_pages.blocks(text), done)) == ["line 16: 12 plums of…", "line 16: 2 [1.0]"]


@pytest.mark.parametrize(("code", "first"), [(0, "true"), (1, "cat nowhere")])
def test_a_block_that_is_meant_to_fail_fails_by_its_last_command(code: int, first: str, tmp_path: Path):
    made, folder = tmp_path / "page.md", tmp_path / "page"
    folder.mkdir()
    made.write_text(f"<!-- exits: 3 -->\n```sh\n{first}\n(exit 3)\n```\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doc_pages, "ROOT", tmp_path)
        assert doc_pages.run(made, folder, port=1).code == code
