from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from call_logs import delta_with
from click.testing import CliRunner

from trunkline.cli.output import print_summary
from trunkline.cli.show import show, show_run
from trunkline.errors import RunFileError, UsageError
from trunkline.store.derive import rows
from trunkline.store.reader import RunReader
from trunkline.store.schema import CallRow
from trunkline.store.writer import RunWriter
from trunkline.tree.views import Tree
from trunkline.types import Task

if TYPE_CHECKING:
    from pathlib import Path

ENDPOINT = "http://h/v1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two tasks: in the second, which has a hostile id, the rollouts differ."""
    path = tmp_path / ("long-" * 30 + "name.run")
    tasks = [Task.ask("Who?", "Ada", id="same"), Task.ask("Where?", "Rome", id="mixed\x1b[2J")]
    writer = RunWriter.create(path, {}, tasks)
    for number, (task, answers) in enumerate(zip(tasks, (["Ada", "Ada"], ["Rome\u202e", "Oslo"]), strict=True)):
        core = Tree(task).core
        point = core.append(0, 1, json.dumps(task.messages[0]).encode())
        for draw, answer in enumerate(answers):
            rollout = core.open(point, [0, draw], draw)
            core.turn(rollout, json.dumps({"role": "assistant", "content": answer}).encode(), 0, 0, 0, 5, 0, 2, 0, 9)
            core.close(rollout, "answer", answer)
            if draw == 0 or number == 1:
                core.score(rollout, float(draw == 0))
        calls = [CallRow(ENDPOINT, 1, 5, 0, 2, 1, 0, -1, 9, 0) for _ in answers]
        delta = delta_with(core, calls)
        writer.commit([(number, 0, delta)], [(number, *rows(core))])
    writer.finish()
    return path


def test_the_tree_whose_rollouts_differ_is_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_run(path)
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith(f"{path}   ")  # in one piece, however long
    assert "task mixed\\x1b[2J: 3 nodes, 2 rollouts" in out
    assert "accuracy" in out
    assert "reference: Rome" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_a_named_task(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_run(path, "same")
    assert "task same: 2 nodes, 2 rollouts" in capsys.readouterr().out
    with pytest.raises(UsageError, match='no task "none"'):
        show_run(path, "none")
    with pytest.raises(RunFileError, match="no such run file"):
        show_run(path.parent / "none.run")


def test_json(path: Path) -> None:
    result = CliRunner().invoke(show, [str(path), "--task", "same", "--json"])
    assert result.exit_code == 0
    assert result.output.isascii()
    data = json.loads(result.output)
    assert data["run"] == str(path)
    assert data["summary"]["rollouts"] == 4
    assert data["summary"]["usage"]["calls"] == 4
    assert data["summary"]["tokens"]["longest"] == data["tree"]["tokens"]["longest"] == 7
    assert data["summary"]["accuracy"]["tasks"] == 2
    assert [rollout["reward"] for rollout in data["tree"]["rollouts"]] == [1.0, None]
    assert [(rollout["turns"], rollout["error"]) for rollout in data["tree"]["rollouts"]] == [(1, None), (1, None)]
    assert data["tree"]["nodes"][0]["message"] == {"role": "user", "content": "Who?"}


def test_json_has_the_failures_and_the_tool_errors(path: Path) -> None:
    data = json.loads(CliRunner().invoke(show, [str(path), "--json"]).output)
    assert data["summary"]["failures"] == []
    assert data["summary"]["short"] == 1
    assert data["summary"]["usage"]["tool_errors"] == 0


def test_the_summary_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunReader.open(path) as reader:
        summary = reader.summary()
    print_summary(summary)
    plain = capsys.readouterr().out
    assert plain.startswith("2 tasks × 2 rollouts · done in ")
    print_summary(summary, verbose=True)
    assert "tasks done" in capsys.readouterr().out
    print_summary(summary, as_json=True)
    assert json.loads(capsys.readouterr().out)["scored"] == 3


def test_bold_labels_on_a_terminal_and_the_same_words(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunReader.open(path) as reader:
        summary = reader.summary()
    print_summary(summary)
    plain = capsys.readouterr().out
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    print_summary(summary)
    styled = capsys.readouterr().out
    assert "\x1b[1m" in styled
    assert "\x1b[32m" in styled, "accuracy in green"
    assert re.sub(r"\x1b\[\d+m", "", styled) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    print_summary(summary)
    assert set(re.findall(r"\x1b\[\d+m", capsys.readouterr().out)) == {"\x1b[0m", "\x1b[1m"}


def test_a_run_without_a_finished_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunWriter.create(tmp_path / "run", {}, [Task.ask("?")]).finish("interrupted")
    show_run(tmp_path / "run")
    out = capsys.readouterr().out
    assert "1 task · 0 tasks done, interrupted" in out
    assert "not known: 0 of 0 rollouts are scored" in out
    show_run(tmp_path / "run", json=True)
    assert "tree" not in json.loads(capsys.readouterr().out)
