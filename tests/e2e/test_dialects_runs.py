"""Whole runs in each dialect: on the simulator over chat completions, and in a user's own one over workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from atlas import CAPITALS, agent
from atlas import tasks as cities
from foreign import message, serving
from lines import Lines

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.llm.dialects.builtin import Hermes, SearchR1
from trunkline.runner.pool import Pool
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Task

TEMPLATE = (
    "# Tools\n\nReply with one JSON object with name and arguments inside <tool_call></tool_call> for each call. These "
    "are the tools:\n<tools>\n{tools}\n</tools>"
)
"""What the simulator's own chat template says of native tools."""


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Task]]:
    folder = tmp_path_factory.mktemp("world")
    write_world(make_world(3, 400, 20), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CORPUS_VARIABLE, str(folder / "corpus.jsonl"))
        yield load_tasks(str(folder / "questions.jsonl"))


@contextmanager
def simulator(*options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "trunkline.sim.server", "--port", "0", "--exit-with-parent", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def sound() -> Iterator[str]:
    with simulator("--preset", "default", "--dial", "malformed=0") as url:
        yield url


def play(url: str, tasks: list[Task], model: str = "sim-agent", **changes: object) -> Run:
    tools = [search] if model == "sim-tagged" else [search, visit]
    return run(
        Agent(**({"model": model, "tools": tools, "system": "Answer the question.", "max_turns": 20} | changes)),
        tasks,
        llm=LLM(url, max_concurrency=32),
        strategy=Chain(2),
        reward=exact_match,
        workers=0,
        seed=4,
    )


def outcome(result: Run) -> list[tuple]:
    return [
        (tree.task.id, one.path, one.answer, one.reward, one.termination, one.turns, one.usage.tools)
        for tree in result
        for one in tree.rollouts
    ]


def accuracy(result: Run) -> float:
    rewards = [one.reward for tree in result for one in tree.rollouts]
    return sum(rewards) / len(rewards)


def test_the_same_prompt_in_hermes_and_native_gives_the_same_rollouts(sound: str, questions: list[Task]) -> None:
    native = play(sound, questions)
    for role in ("user", "tool"):
        hermes = play(sound, questions, dialect=Hermes(role=role, instructions=TEMPLATE))
        assert outcome(hermes) == outcome(native)
        spent, other = hermes.summary().usage, native.summary().usage
        assert (spent.calls, spent.prompt, spent.generated) == (other.calls, other.prompt, other.generated)
    assert 0.3 < accuracy(native) < 0.9, "there is something to tell apart"


@pytest.mark.parametrize("thinking", ["content", "field", "dropped"])
def test_hermes_answers_questions_wherever_thinking_comes(thinking: str, questions: list[Task]) -> None:
    with simulator("--reasoning", thinking, "--dial", "malformed=0") as url:
        result = play(url, questions, dialect="hermes")
    assert accuracy(result) > 0.3
    assert result.summary().usage.tool_errors == 0


@pytest.mark.parametrize("keep_stop", [True, False])
def test_search_r1_answers_questions_whether_the_stop_string_stays_or_not(
    sound: str, questions: list[Task], keep_stop: bool
) -> None:
    result = play(sound, questions, "sim-tagged", dialect=SearchR1(keep_stop=keep_stop))
    assert accuracy(result) > 0.3
    said = [m["content"] for tree in result for one in tree.rollouts for m in one.messages if m["role"] == "assistant"]
    searches = [text for text in said if "<search>" in text]
    assert len(searches) > len(questions)
    assert all(text.endswith("</search>") for text in searches) == keep_stop


def test_repairs_save_turns_and_stand_in_the_tree(questions: list[Task]) -> None:
    with simulator("--dial", "malformed=0.4") as url:
        returned = play(url, questions, dialect="hermes")
        repaired = play(url, questions, dialect="hermes", malformed="repair")
    assert repaired.summary().usage.calls < returned.summary().usage.calls
    assert repaired.summary().usage.tool_errors < returned.summary().usage.tool_errors
    assert len([text for text in told(repaired) if "no JSON object; read as {" in text]) > 8
    assert not any("read as" in text for text in told(returned))


def told(result: Run) -> list[str]:
    """Everything that rollouts were told after a turn."""
    return [
        m["content"]
        for tree in result
        for one in tree.rollouts
        for m in one.messages[2:]
        if m["role"] in {"user", "tool"}
    ]


def spoken(body: dict) -> dict:
    """A model that speaks the dialect of ``lines``."""
    country = body["messages"][1]["content"].removeprefix("Capital of ").rstrip("?")
    results = [m["content"] for m in body["messages"] if m["content"].startswith("RESULT lookup: capital: ")]
    if results:
        return message(f"<answer>{results[0].rpartition(' ')[2]}</answer>")
    return message(f"CALL lookup {json.dumps({'country': country})}")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dialect_of_ones_own_crosses_to_workers(workers: int, tmp_path: Path) -> None:
    with serving(spoken) as server:
        result = run(
            agent(dialect=Lines()),
            cities(),
            llm=LLM(server.url, max_retries=0),
            reward=exact_match,
            workers=workers,
            out=tmp_path / "r",
        )
    assert {tree.task.id: tree.answer for tree in result} == CAPITALS
    assert all(body["messages"][0]["content"] == "Tools: lookup" for body in server.bodies)
    assert all("tools" not in body for body in server.bodies)


def test_the_options_of_a_dialect_cross_to_workers(tmp_path: Path, local_pool: Pool) -> None:
    def hermes(body: dict) -> dict:
        assert body["messages"][0]["content"].startswith('Use {"type":"function"')
        found = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        call = '<tool_call>{"name": "lookup", "arguments": {"country": "Chile"}</tool_call>'
        return message(found[0] if found else call)

    with serving(hermes) as server:
        result = run(
            agent(dialect=Hermes(role="tool", instructions="Use {tools}"), malformed="repair"),
            [Task.ask("Capital of Chile?", "Santiago", id="Chile")],
            llm=LLM(server.url, max_retries=0),
            pool=local_pool,
            out=tmp_path / "r",
        )
    (tree,) = result
    assert tree.answer.endswith("\ncapital: Santiago")
    assert "read as" in tree.answer
    with RunReader.open(result.path) as reader:
        kept = reader.settings["agent"]
    assert (kept["dialect"]["kind"], kept["dialect"]["options"]["role"], kept["malformed"]) == (
        "hermes",
        "tool",
        "repair",
    )
