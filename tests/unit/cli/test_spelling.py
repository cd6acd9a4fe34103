"""Spelling on the command line: underscores are hyphens, and a near miss is told what it was near to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import trunkline

NAMED = ("-m", "m", "--base-url", "http://127.0.0.1:9/v1")


def test_underscores_are_hyphens_in_options_and_names(tmp_path: Path):
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    plans = [
        trunkline(
            tmp_path, "run", "q.jsonl", *NAMED, option, "7", "--strategy", name, "--dry-run", "--json", "--seed", 1
        )
        for option, name in (("--max-turns", "tree-grpo"), ("--max_turns", "tree_grpo"))
    ]
    assert [done.returncode for done in plans] == [0, 0]
    first, second = (json.loads(done.stdout) for done in plans)
    assert first["settings"] == second["settings"]
    assert first["settings"]["agent"]["max_turns"] == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shw"], "No such command 'shw' (did you mean show?)"),
        (["run", "q.jsonl", *NAMED, "--max-turn", 3], "No such option '--max-turn'. (Did you mean one of:"),
        (["run", "q.jsonl", *NAMED, "--strategy", "mct", "--dry-run"], "(did you mean mcts?)"),
        (["run", "q.jsonl", *NAMED, "--budget", "token=3"], "(did you mean tokens?)"),
    ],
)
def test_a_near_miss_is_told_what_it_was_near_to(arguments: list[object], said: str, tmp_path: Path):
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    done = trunkline(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_tools_are_taken_from_a_file_and_cross_to_workers(tmp_path: Path):
    (tmp_path / "q.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.py").write_text(
        'import trunkline as tl\n\n\n@tl.tool\ndef echo(text: str) -> str:\n    """Say it again."""\n    return text\n'
    )
    told = trunkline(tmp_path, "run", "q.jsonl", *NAMED, "--tools", "here/mine.py", "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "echo" in told.stdout
