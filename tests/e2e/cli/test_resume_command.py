"""The same command again, and ``trunkline resume``."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from atlas import CAPITALS
from commands import Done, trunkline
from foreign import capital_cities, error, message, serving
from resuming import digests, environment, kill, start, undo, wait_for

from trunkline.store.lock import is_written
from trunkline.store.reader import RunReader
from trunkline.store.state import resumptions
from trunkline.store.writer import RunWriter

LIBRARY = """
import sys
from trunkline.llm.config import LLM
from trunkline.strategies.chain import Chain
from trunkline.agent import Agent
from trunkline.runner.run import run
from atlas import agent, tasks
from trunkline.scoring.rewards import exact_match

def shout(trajectory):
    return float(trajectory.answer == "Paris")

{local}

if __name__ == "__main__":
    llm = LLM(sys.argv[1], max_concurrency=4{llm})
    run(agent(), tasks(), llm=llm, strategy=Chain(2), seed=7, reward={reward}, workers=0, out=sys.argv[2]{more})
"""


JUDGE = """
import msgspec
class Judge(msgspec.Struct):
    api_key: str
    def __call__(self, trajectory):
        return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with questions, and nothing in the environment that stands for an option."""
    lines = [json.dumps({"id": c, "question": f"Capital of {c}?", "answer": a}) for c, a in CAPITALS.items()]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def apart(folder: Path, *arguments: object) -> Done:
    """Run a command to its end, in a process of its own."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def ask(folder: Path, url: str, *more: object) -> Done:
    """The command that is given again."""
    given = ["--model", "m/1", "--base-url", url, "--tools", "atlas:lookup", "--rollouts", 2, "--workers", 0]
    return trunkline(folder, "run", "q.jsonl", *given, *more)


def test_the_same_command_goes_on_and_then_shows_what_came_of_it(folder: Path):
    with serving(capital_cities) as server:
        first = ask(folder, server.url, "--out", "r.run", "--seed", 7)
        assert first.returncode == 0, first.stderr
        assert "begins r.run" in first.stderr
        whole, sent = digests(folder / "r.run"), len(server.bodies)
        undo(folder / "r.run", "Japan")
        again = ask(folder, server.url, "--out", "r.run", "--seed", 7)
        assert "resumes r.run: 4 of 5 tasks are finished" in again.stderr
        assert (again.returncode, digests(folder / "r.run")) == (0, whole)
        assert sent < len(server.bodies) < 2 * sent
        sent = len(server.bodies)
        third = ask(folder, server.url, "--out", "r.run", "--seed", 7)
        assert len(server.bodies) == sent
    assert "finished r.run: 5 of 5 tasks are finished" in third.stderr
    assert (third.returncode, third.stdout) == (0, again.stdout)
    other = ask(folder, server.url, "--out", "r.run", "--rollouts", 3)
    assert other.returncode == 2
    assert "strategy.options.n: 2 there, 3 here" in other.stderr


def test_a_run_that_begins_anew_leaves_the_earlier_one_under_another_name(folder: Path):
    with serving(capital_cities) as server:
        again = ["--out", "r.run", "--fresh"]
        assert ask(folder, server.url, "--out", "r.run", "--seed", 7).returncode == 0
        whole = digests(folder / "r.run")
        dry = ask(folder, server.url, *again, "--dry-run")
        assert (dry.returncode, digests(folder / "r.run")) == (0, whole), dry.stderr
        assert "r.run" in dry.stdout
        wrong = ask(folder, server.url, *again, "--budget", "generated=100")
        assert (wrong.returncode, digests(folder / "r.run")) == (2, whole), "what cannot run moves nothing"
        fresh = ask(folder, server.url, *again, "--seed", 8)
        assert fresh.returncode == 0, fresh.stderr
        assert "--fresh: the run at r.run is now r.run.1" in fresh.stderr
        assert "begins r.run" in fresh.stderr
        assert digests(folder / "r.run.1") == whole
        assert ask(folder, server.url, *again).returncode == 0
        assert digests(folder / "r.run.1") == whole, "no earlier one is replaced"
        assert sorted(path.name for path in folder.glob("r.run*")) == ["r.run", "r.run.1", "r.run.2"]
        same = ask(folder, server.url, *again, "--from", "r.run")
        assert (same.returncode, "--from and --out name one file" in same.stderr) == (2, True)
        (folder / "notes").write_text("precious")
        other = ask(folder, server.url, "--out", "notes", "--fresh")
    assert (other.returncode, (folder / "notes").read_text()) == (2, "precious")


def test_a_run_that_begins_anew_takes_no_log_from_the_earlier_one(folder: Path):
    with serving(capital_cities) as server:
        assert ask(folder, server.url, "--out", "r.run").returncode == 0
        (folder / "r.run-wal").write_bytes(b"a log that is damaged")
        assert ask(folder, server.url, "--out", "r.run", "--fresh").returncode == 0
    assert (folder / "r.run.1-wal").read_bytes() == b"a log that is damaged"
    assert not (folder / "r.run-wal").exists()


def test_a_run_that_broke_prints_the_command_that_asks_again_and_it_does(folder: Path):
    broken = [True]

    def answer(body: dict) -> object:
        brazil = broken[0] and "Brazil" in json.dumps(body["messages"])
        return error(400, "no \x1b[2J such thing") if brazil else capital_cities(body)

    with serving(answer) as server:
        given = [
            "--model",
            "m",
            "--base-url",
            server.url,
            "--tools",
            "atlas:lookup",
            "--workers",
            "0",
            "--out",
            "a.run",
        ]
        first = trunkline(folder, "run", "q.jsonl", *given)
        assert first.returncode == 1
        (retry,) = [line for line in first.stderr.splitlines() if line.startswith("to retry them: ")]
        assert "1 of 5 rollouts broke" in first.stderr.splitlines()
        assert "such thing" in first.stderr
        assert "\x1b" not in first.stderr
        allowed = trunkline(folder, "run", "q.jsonl", *given, "--fail-on-error", "1")
        assert allowed.returncode == 0
        broken.clear()
        broken.append(False)
        command = shlex.split(retry.removeprefix("to retry them: ").partition(" (in Python")[0])
        assert command[0] == "trunkline"
        again = trunkline(folder, *command[1:])
    assert again.returncode == 0, again.stderr
    assert "to retry them" not in again.stderr


def test_a_name_that_was_not_given_is_found_again(folder: Path):
    with serving(capital_cities) as server:
        assert ask(folder, server.url).returncode == 0
        (path,) = (folder / "runs").iterdir()
        assert path.match("*-m-1-????????.run")
        whole = digests(path)
        undo(path, "Japan", "Chile")
        dry = ask(folder, server.url, "--dry-run")
        assert "would be resumed: 3 tasks are finished" in dry.stdout
        again = ask(folder, server.url, "--max-concurrency", 3)
        assert f"resumes runs/{path.name}: 3 of 5 tasks are finished" in again.stderr
        assert digests(path) == whole, "its seed was drawn, and is the run's"
        undo(path, "Japan")
        assert "begins runs/" in ask(folder, server.url, "--fresh").stderr
        assert "begins runs/" in ask(folder, server.url, "--temperature", 0.5).stderr
        assert len(list((folder / "runs").iterdir())) == 3
        forced = ask(folder, server.url, "--temperature", 0.7, "--out", path, "--force")
    assert forced.returncode == 0, forced.stderr
    with RunReader.open(path) as reader:
        last = resumptions(reader.meta)[-1]
    assert last.forced
    assert "agent.sampling.temperature: nothing there, 0.7 here" in last.changed
    assert ask(folder, server.url, "--fresh", "--force").returncode == 2


def test_the_name_of_a_model_with_a_long_path_is_found_again(folder: Path):
    given = ["--model", "models/" + "a-very-long-name/" * 5]
    with serving(capital_cities) as server:
        assert ask(folder, server.url, *given).returncode == 0
        (path,) = (folder / "runs").iterdir()
        undo(path, "Japan")
        assert f"resumes runs/{path.name}: 4 of 5 tasks" in ask(folder, server.url, *given).stderr


def test_a_damaged_run_is_named_before_another_one_is_begun(folder: Path):
    with serving(capital_cities) as server:
        assert ask(folder, server.url).returncode == 0
        (path,) = (folder / "runs").iterdir()
        undo(path, "Japan")
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE meta SET value = '{' WHERE key = 'settings'")
        connection.close()
        sent = len(server.bodies)
        again = ask(folder, server.url)
        assert len(server.bodies) == sent
        assert again.returncode == 3
        assert f"runs/{path.name} is damaged" in again.stderr
        assert "--fresh begins anew" in again.stderr
        assert ask(folder, server.url, "--fresh").returncode == 0


def test_a_run_of_which_a_part_is_lost_goes_on_when_that_is_said(folder: Path):
    with serving(capital_cities) as server:
        assert ask(folder, server.url, "--out", "r.run").returncode == 0
        whole = digests(folder / "r.run")
        undo(folder / "r.run", "Japan")
        with RunWriter.open(folder / "r.run"):
            shutil.copy(folder / "r.run", folder / "copy.run")
        sent = len(server.bodies)
        for more in (["resume", "copy.run", "--base-url", server.url], ["show", "copy.run"]):
            done = trunkline(folder, *more)
            assert done.returncode == 3
            assert "its log copy.run-wal is not beside it" in done.stderr.replace(f"{folder}/", "")
        assert ask(folder, server.url, "--out", "copy.run").returncode == 3
        assert len(server.bodies) == sent
        done = trunkline(folder, "resume", "copy.run", "--base-url", server.url, "--force")
        assert done.returncode == 0, done.stderr
    assert digests(folder / "copy.run") == whole
    with RunReader.open(folder / "copy.run") as reader:
        assert any("copy.run-wal is not beside it" in line for line in resumptions(reader.meta)[-1].changed)


def test_resume_needs_the_file_and_nothing_else(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with serving(capital_cities) as server:
        assert ask(folder, server.url, "--out", "r.run").returncode == 0
        path = folder / "r.run"
        whole = digests(path)
        undo(path, "Japan")
        with serving(capital_cities) as other:
            done = trunkline(elsewhere, "resume", path, "--base-url", other.url, "-c", 2, "--budget", "calls=99")
            assert done.returncode == 0, done.stderr
            assert {body["messages"][0]["content"] for body in other.bodies} == {"Capital of Japan?"}
    assert digests(path) == whole
    with RunReader.open(path) as reader:
        fields = {line.partition(":")[0] for line in resumptions(reader.meta)[-1].changed}
    assert fields == {"llm.base_urls[0]", "llm.max_concurrency", "budget", "timing_dependent"}
    again = trunkline(elsewhere, "resume", path)
    assert (again.returncode, again.stdout.split()) == (0, done.stdout.split())


def test_a_price_and_rates_are_taken_from_the_command(folder: Path):
    with serving(capital_cities) as server:
        assert ask(folder, server.url, "--out", "r.run").returncode == 0
        undo(folder / "r.run", "Japan")
        done = trunkline(folder, "resume", "r.run", "--price", "prompt=1,generated=2", "--rpm", 6000, "--timeout", 9)
        assert done.returncode == 0, done.stderr
    with RunReader.open(folder / "r.run") as reader:
        assert list(reader.prices) == [server.url]
        fields = {line.partition(":")[0] for line in resumptions(reader.meta)[-1].changed}
    assert {"llm.timeout", "llm.limits.requests_per_minute"} < fields


def test_code_that_has_changed_so_that_it_does_not_fit_is_said_in_one_line(folder: Path):
    judge = JUDGE.replace("api_key: str", "right: {kind}")
    with serving(capital_cities) as server:
        script(folder, server.url, reward="Judge('Paris')", local=judge.format(kind="str"))
    undo(folder / "r.run", "Japan")
    (folder / "mine.py").write_text((folder / "mine.py").read_text().replace("right: str", "right: int"))
    done = apart(folder, "-m", "trunkline.cli", "resume", "r.run")
    assert done.returncode == 2
    assert "has another 'Judge'" in done.stderr
    assert "Traceback" not in done.stderr


def script(
    folder: Path, url: str, *, started: Sequence[str] = ("mine.py",), reward: str = "shout", **parts: str
) -> None:
    """Run a script of the user's own to its end."""
    (folder / "mine.py").write_text(LIBRARY.format(reward=reward, **{"local": "", "llm": "", "more": "", **parts}))
    done = apart(folder, *started, url, "r.run")
    assert done.returncode == 0, done.stderr


def test_the_code_of_a_script_is_found_again(folder: Path):
    with serving(capital_cities) as server:
        script(folder, server.url)
        whole = digests(folder / "r.run")
        undo(folder / "r.run", "Japan", "France")
        done = apart(folder.parent, "-m", "trunkline.cli", "resume", folder / "r.run", "--workers", 1)
    assert done.returncode == 0, done.stderr
    assert digests(folder / "r.run") == whole


PROGRAM = """
async def play(rollout):
    turn = await rollout.ask()
    return turn.text
"""

LOCAL = """
def local():
    async def play(rollout):
        return "Paris"
    return play
"""


@pytest.mark.parametrize("started", [["mine.py"], ["-m", "mine"]])
def test_a_program_and_the_version_of_the_weights_are_found_again(folder: Path, started: list[str]):
    with serving(lambda _: message("Paris")) as server:
        script(folder, server.url, started=started, local=PROGRAM, more=", program=play, policy_version='step-7'")
        whole = digests(folder / "r.run")
        undo(folder / "r.run", "Japan")
        done = apart(folder.parent, "-m", "trunkline.cli", "resume", folder / "r.run")
    assert done.returncode == 0, done.stderr
    assert digests(folder / "r.run") == whole
    with RunReader.open(folder / "r.run") as reader:
        assert resumptions(reader.meta)[-1].changed == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"more": ", program=local()", "local": LOCAL}, "is not defined at the top level of a module"),
        ({"reward": "lambda trajectory: 1.0"}, "is not defined at the top level of a module"),
        ({"llm": ', api_key="sk-1234567890abcdef1234"'}, "the endpoint's key or headers were given directly"),
        ({"reward": "Judge('sk-1234567890abcdef1234')", "local": JUDGE}, "looks like a key"),
    ],
)
def test_what_has_no_name_or_is_secret_is_in_no_file(folder: Path, given: dict, why: str):
    with serving(capital_cities) as server:
        script(folder, server.url, **given)
    undo(folder / "r.run", "Japan")
    assert b"sk-1234567890" not in (folder / "r.run").read_bytes()
    done = trunkline(folder, "resume", "r.run")
    assert done.returncode == 2
    assert why in done.stderr
    assert "run the script that began it again, with resume=True" in done.stderr


def test_a_damaged_file_is_named_and_ends_with_3(folder: Path):
    with serving(capital_cities) as server:
        assert ask(folder, server.url, "--out", "r.run").returncode == 0
    path = folder / "r.run"
    undo(path, "Japan")
    data = bytearray(path.read_bytes())
    data[4096 : 2 * 4096] = bytes(4096)
    path.write_bytes(data)
    for done in (
        trunkline(folder, "resume", "r.run"),
        ask(folder, server.url, "--out", "r.run"),
        apart(folder, "-m", "trunkline.cli", "resume", "r.run"),
    ):
        assert done.returncode == 3, done.stderr
        assert "`trunkline check" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_run_that_is_going_on_is_not_resumed_beside_it(folder: Path):
    with serving(lambda _: message("<answer>x</answer>"), delay=2) as server:
        process = start(server.url, folder / "r.run")
        wait_for(lambda: server.bodies)
        done = trunkline(folder, "resume", "r.run")
        kill(process)
    assert done.returncode == 2
    assert f"is being written by process {process.pid} on " in done.stderr
    wait_for(lambda: not is_written(folder / "r.run"))
