"""``trunkline show --metrics`` and ``--confidence``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import trunkline
from scored_runs import BROKE, RIGHT, WRONG, write

from trunkline.cli.tables import calibration_table
from trunkline.scoring.confidence import CONFIDENCES, NEEDS

TRIES = {
    "x": [RIGHT, RIGHT, WRONG, RIGHT],
    "y": [WRONG, BROKE, RIGHT, WRONG],
    "z": [WRONG, WRONG, WRONG, WRONG],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "run", TRIES, priced=True)
    write(tmp_path / "unscored", {"x": [BROKE]})
    (tmp_path / "own_confidence.py").write_text(
        "def sure(rollout):\n    return 0.9 if rollout.answer == 'yes' else 0.4\n"
        "def lost(rollout):\n    raise ValueError('no\\x1b idea')\n"
        "nothing = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_metric_has_a_line(folder: Path) -> None:
    done = trunkline(folder, "show", "run", "--metrics")
    assert done.returncode == 0, done.stderr
    section = f"\n{done.stdout}".splitlines()
    names = [line.split("  ")[0] for line in section if "%" in line and "metric" not in line and "each" not in line]
    assert names == [
        "accuracy of one try", "pass@1", "pass@2", "pass@4", "pass^1", "pass^2", "pass^4",
        "majority@1", "majority@2", "majority@4", "best of all",
        "generated tokens per solved task", "tokens per solved task", "price per solved task",
    ]  # fmt: skip
    tasks = {line.split("  ")[0]: line[len("generated tokens per solved task") :].split()[0] for line in section[2:16]}
    assert (tasks["pass@2"], tasks["pass@4"], tasks["majority@4"]) == ("3", "2", "2")
    assert "task x:" not in done.stdout


def test_the_default_screen_is_without_them_and_json_has_them(folder: Path) -> None:
    assert "pass^" not in trunkline(folder, "show", "run").stdout
    data = json.loads(trunkline(folder, "show", "run", "--json").stdout)["metrics"]
    assert list(data["pass_at"]) == ["1", "2", "4"]
    assert data["accuracy"]["tries"] == 12
    assert data["cost_per_solved"]["solved"] == 2


def test_nothing_scored_is_said(folder: Path) -> None:
    assert "no metrics: nothing is scored" in trunkline(folder, "show", "unscored", "--metrics").stdout
    told = trunkline(folder, "show", "unscored", "--confidence", "own_confidence:sure").stdout
    assert "confidence own_confidence:sure: no scored try has one" in told


def test_a_confidence_that_no_try_has_names_what_it_needs(folder: Path) -> None:
    told = trunkline(folder, "show", "run", "--confidence", "logprob").stdout
    assert "confidence logprob: no scored try has one; it needs token ids with their log-probs" in told
    assert "this run has" not in told
    assert "logprob needs token ids" in " ".join(trunkline(folder, "show", "--help").stdout.split())
    assert calibration_table("logprob", None, "entropy").endswith(
        "LLM(tokens=TokenMode(...)) (--tokens); this run has entropy"
    )
    assert NEEDS.keys() == CONFIDENCES.keys()


def test_whether_surer_tries_are_right(folder: Path) -> None:
    done = trunkline(folder, "show", "run", "--confidence", "own_confidence:sure")
    assert done.returncode == 0, done.stderr
    lines = {" ".join(line.split()[:2]): line for line in done.stdout.splitlines()}
    assert "of 11 scored tries; 0 more have none" in lines["confidence own_confidence:sure,"]
    assert lines["AUROC 1.000"]
    brier = (4 * 0.01 + 7 * 0.16) / 11
    assert f"{brier:.3f}  (95 %: " in lines["Brier score"]
    assert lines["0.900 to"].split()[3:] == ["4", "0.900", "1.000"]
    data = json.loads(trunkline(folder, "show", "run", "--confidence", "own_confidence:sure", "--json").stdout)
    assert data["calibration"]["auroc"]["value"] == 1.0
    assert data["calibration"]["brier"]["value"] == pytest.approx(brier)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("guess", "'guess' is none of logprob, entropy, verbalised, reward, value; your own is written"),
        ("own_confidence:nothing", "it is no function of a rollout"),
        ("own_confidence:lost", "ValueError: no\\x1b idea"),
    ],
)
def test_a_confidence_that_cannot_be_is_one_line(folder: Path, given: str, says: str) -> None:
    done = trunkline(folder, "show", "run", "--confidence", given)
    assert done.returncode == 2
    assert says in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("name", ["logprob", "entropy", "verbalised", "reward", "value"])
def test_those_that_the_library_knows(folder: Path, name: str) -> None:
    done = trunkline(folder, "show", "run", "--confidence", name)
    assert done.returncode == 0, done.stderr
    assert f"confidence {name}" in " ".join(done.stdout.split())
