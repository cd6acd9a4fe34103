"""Runs with several LLMs, killed and resumed, by a script and on the command line; and what crosses to Ray."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from foreign import message, serving
from panels import JUDGE, Panel, asks_both
from places import python_path

from trunkline.agent import Agent
from trunkline.backends.ray import RayBackend
from trunkline.cli.run import resume as resume_command
from trunkline.cli.run import run as run_command
from trunkline.errors import ConfigError
from trunkline.llm.config import LLM
from trunkline.protocol.job import Job, pack_job, unpack_job
from trunkline.runner.run import run
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Task

TASKS = [Task.ask(f"what is {n}?", id=f"q{n}") for n in range(4)]


def of(who: str) -> Any:
    """Says who answers and with which seed: the same to the same request."""
    return lambda body: message(f"{who} {body['seed']}")


def command(*given: str, **env: str) -> subprocess.Popen[str]:
    path = python_path()
    pipe = subprocess.PIPE
    words = [sys.executable, "-m", "trunkline.cli", *given]
    return subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path} | env, stdout=pipe, stderr=pipe, text=True)


def trunkline(*given: str, **env: str) -> tuple[int, str, str]:
    with command(*given, **env) as running:
        out, problems = running.communicate(timeout=60)
    return running.returncode, out, problems


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "q.jsonl"
    path.write_text("".join(f'{{"question": "what is {n}?"}}\n' for n in range(4)))
    return str(path)


def digests(path: str) -> dict[str, str]:
    with RunReader.open(Path(path)) as reader:
        assert reader.check() == []
        names = reader.task_ids()
        return {names[number]: row.digest for number, row in reader.rows()}


def test_a_killed_run_is_resumed_with_all_its_llms_where_they_are_now(questions: str, tmp_path: Path):
    whole, killed = str(tmp_path / "whole"), str(tmp_path / "killed")
    reached = threading.Event()

    def slowly(body: dict) -> dict:
        time.sleep(0.05)
        if len(second.bodies) == 2:
            reached.set()
        return of("judge")(body)

    with serving(of("main")) as first, serving(of("judge")) as second:
        llms = {"": LLM(first.url), "judge": LLM(second.url)}
        lead = Agent(model="m")
        run(lead, load_tasks(questions), program=asks_both, llm=llms, seed=5, workers=0, out=whole)
    given = [
        "run",
        questions,
        "--model",
        "m",
        "--program",
        "panels:asks_both",
        "--seed",
        "5",
        "--workers",
        "1",
        "-c",
        "2",
    ]
    with serving(of("main")) as first, serving(slowly) as second:
        urls = ["--base-url", first.url, "--llm", f"judge={second.url},max_concurrency=1,api_key_env=JUDGES"]
        with command(*given, *urls, "--out", killed, OPENAI_API_KEY="main-key-x", JUDGES="judge-key-x") as running:
            assert reached.wait(30)
            running.kill()
            running.communicate(timeout=30)
        assert {headers["Authorization"] for headers in first.headers} == {"Bearer main-key-x"}
        assert {headers["Authorization"] for headers in second.headers} == {"Bearer judge-key-x"}
        # The judge has moved meanwhile; what is not said is as before.
        with serving(of("judge")) as moved:
            code, _, problems = trunkline("resume", killed, "--llm", f"judge={moved.url}", JUDGES="judge-key-y")
            assert code == 0, problems
            assert moved.bodies
            assert {headers["Authorization"] for headers in moved.headers} == {"Bearer judge-key-y"}
    assert digests(killed) == digests(whole)
    assert b"judge-key" not in Path(killed).read_bytes()


def test_a_script_that_resumes_may_move_an_llm_but_not_give_another_in_its_place(tmp_path: Path):
    out = tmp_path / "r"
    with serving(of("main")) as main, serving(of("judge")) as judge:
        llms = {"": LLM(main.url), "judge": LLM(judge.url)}
        first = run(Panel(model="m"), TASKS, llm=llms, workers=0, out=out, seed=1)
        again = run(Panel(model="m"), TASKS, llm=llms, workers=0, out=out, seed=1, resume=True)
        assert len(again) == len(first) == 4
        assert len(main.bodies) == 8
        others = {"": LLM(main.url), "judge": LLM("http://127.0.0.1:9/v1", max_concurrency=3)}
        run(Panel(model="m"), TASKS, llm=others, workers=0, out=out, seed=1, resume=True)
        named = {"": LLM(main.url), "other": LLM(judge.url)}
        team = Panel(model="m", roles={name: {"llm": "other"} for name in ("strict", "mild")})
        with pytest.raises(ConfigError, match=r'begun with other settings: .*llm: "judge" there, "other" here'):
            run(team, TASKS, llm=named, workers=0, out=out, seed=1, resume=True)


@pytest.mark.parametrize(
    ("llm", "words"),
    [
        ("http://x/v1", "write NAME=URL"),
        ("judge", "write NAME=URL"),
        ("a b=http://x/v1", "must be a name of letters"),
        ("judge=nowhere", "--llm judge: the base URL 'nowhere' must start with http"),
        ("judge=http://x/v1,speed=9", "'speed=9' is no option=value that it knows; there is api_key_env"),
        ("judge=http://x/v1,rpm=many", "rpm must be a number, not 'many'"),
        ("judge=http://x/v1,rpm=1,rpm=2", "option rpm is given twice"),
        ("judge=http://x/v1,max_concurrency=0", "--llm judge: max_concurrency"),
        ("judge=http://x/v1,prompt=1", "the price lacks generated"),
        ("judge=http://x/v1", "no agent calls the LLM 'judge'"),
    ],
)
def test_what_the_option_cannot_mean_is_one_line(llm: str, words: str, questions: str):
    given = [questions, "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--llm", llm, "--dry-run"]
    outcome = CliRunner().invoke(run_command, given)
    assert isinstance(outcome.exception, ConfigError)
    assert words in str(outcome.exception)


def test_a_dry_run_names_every_llm(questions: str):
    given = [questions, "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--program", "panels:asks_both"]
    outcome = CliRunner().invoke(run_command, [*given, "--llm", "judge=http://127.0.0.1:10/v1", "--dry-run"])
    assert outcome.exit_code == 0, outcome.exception
    assert "m at http://127.0.0.1:9/v1" in outcome.output
    assert "llm judge" in outcome.output
    assert "http://127.0.0.1:10/v1" in outcome.output


def test_a_team_whose_roles_all_name_others_has_no_llm_without_a_name(questions: str, tmp_path: Path):
    out, given = tmp_path / "r", [questions, "--model", "m", "--team", "panels:Apart", "--workers", "0"]
    with serving(of("solver")) as solver, serving(of("judge")) as judge:
        named = ["--llm", f"solver={solver.url}", "--llm", f"judge={judge.url}"]
        outcome = CliRunner().invoke(run_command, [*given, *named, "--out", str(out)])
        assert (outcome.exit_code, len(solver.bodies), len(judge.bodies)) == (0, 8, 16), outcome.output
    with RunReader.open(out) as reader:
        assert (reader.settings["llm"], set(reader.settings["llms"])) == (None, {"solver", "judge"})
    for option, value in (("--base-url", "http://x/v1"), ("--rpm", "6"), ("--price", "prompt=1,generated=1")):
        outcome = CliRunner().invoke(run_command, [*given, *named, option, value, "--dry-run"])
        assert f"{option} is of an LLM without a name, which no role of the team asks" in str(outcome.exception)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--base-url", "http://x/v1"], "--base-url is of an LLM without a name; the run has 'judge'"),
        (["--rpm", "6"], "--rpm is of an LLM without a name"),
        (["--llm", "other=http://x/v1"], "--llm other: the run has no such LLM, but 'judge'"),
        (["--llm", "judge=x"], "--llm judge: the base URL 'x' must start with http"),
    ],
)
def test_what_is_other_must_be_of_an_llm_that_is_there(given: list[str], words: str, tmp_path: Path):
    out = tmp_path / "r"
    with serving(of("judge")) as server:
        run(JUDGE, TASKS[:1], llm={"judge": LLM(server.url)}, workers=0, out=out)
    outcome = CliRunner().invoke(resume_command, [str(out), *given])
    assert isinstance(outcome.exception, ConfigError)
    assert words in str(outcome.exception)


class Packing(RayBackend):
    """Starts nothing, and keeps what its actors would be given."""

    def _packed(self, job: Job) -> tuple[int, bytes]:
        self.given = unpack_job(pack_job(job))
        raise LookupError


async def test_actors_of_ray_get_the_key_of_every_llm(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("ray")
    keys = {"": "key-of-the-lead", "judge": "key-of-the-judges"}
    for name, key in keys.items():
        monkeypatch.setenv(f"KEY_{name}", key)
    llms = {name: LLM("http://x/v1", api_key_env=f"KEY_{name}") for name in keys}
    job = Job(agent=Agent(model="m"), strategy=Chain(), reward=None, llm=llms, seed=1, program=asks_both)
    ray = Packing(1)
    with pytest.raises(LookupError):
        await ray.start(job, asyncio.Queue())
    for name in keys:
        monkeypatch.delenv(f"KEY_{name}")
    assert {name: llm.key() for name, llm in ray.given.llms.items() if isinstance(llm, LLM)} == keys
