"""Agents of other frameworks, unmodified, against a server that answers by seeds: chains, trees, kills, masks."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from external_agents import PAGES
from foreign import message, serving
from havoc import MARK, marked
from places import ROOT
from resuming import digests, environment, kill, wait_for

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.rollout.external.config import External
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.types import Task

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(1800)]

AGENTS = (
    "openai_agents",
    "langgraph_agent",
    "pydantic_agent",
    "smolagents_tools",
    "smolagents_code",
    "mini_swe_agent",
)
PYTHON = os.environ.get("AGENTS_PYTHON", sys.executable)
TASKS = int(os.environ.get("AGENTS_TASKS", "12"))

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[5])
from test_agents import play

if __name__ == "__main__":
    url, out, name, folder, _ = sys.argv[1:]
    play(url, Path(out), name, Path(folder), workers=2, resume=True)
"""


def reply(body: dict[str, Any]) -> dict[str, Any]:
    """Looks one to three things up by the seed, with whatever tools the agent has, then answers."""
    luck = random.Random(body["seed"])
    word = f"word{luck.randrange(9)}"
    spoken = sum(one["role"] == "assistant" for one in body["messages"])
    done = spoken >= 1 + luck.randrange(3)
    tools = {tool["function"]["name"] for tool in body.get("tools", ())}
    if "bash" in tools:
        end = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo {word}"
        return message("I look.", [("bash", json.dumps({"command": end if done else f"echo {word}"}))])
    if "final_answer" in tools and done:
        return message(None, [("final_answer", json.dumps({"answer": word}))])
    if "search" in tools:
        return message(word) if done else message(None, [("search", json.dumps({"query": [word]}))])
    code = f'final_answer("{word}")' if done else f'print(search(query=["{word}"]))'
    return message(f"Thought: I look.\n<code>\n{code}\n</code>")


def play(url: str, out: Path, name: str, folder: Path, workers: int, strategy: Any = None, **options: Any) -> Any:
    """Run an agent over the tasks."""
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in PAGES), "utf-8")
    command = shlex.join([PYTHON, str(ROOT / "examples" / "agents" / f"{name}.py")])
    process = {"env": [f"CORPUS={corpus}"], "seconds": 300.0}
    program = External(agent=command, effects="folder", process=process)
    tasks = [Task.ask(f"what is {number}?", id=f"q{number}") for number in range(TASKS)]
    strategy = strategy or TreeGRPO(trees=1, forks=1, rounds=1)
    llm = LLM(url, max_concurrency=4)
    return run(
        Agent(model="m"),
        tasks,
        llm=llm,
        program=program,
        out=out,
        workers=workers,
        seed=3,
        strategy=strategy,
        **options,
    )


@pytest.mark.parametrize("name", AGENTS)
def test_chains_trees_and_kills(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(reply) as server:
        chains = play(server.url, tmp_path / "chains", name, tmp_path, 1, Chain(1)).summary()
        assert chains.terminations == {"answer": TASKS}, chains.failures
        before = len(server.bodies)
        calm = play(server.url, tmp_path / "calm", name, tmp_path, 1).summary()
        usual = len(server.bodies) - before
        assert calm.terminations == {"answer": 2 * TASKS}, calm.failures
        assert calm.agent_calls.again > 0
        assert calm.agent_calls.diverged == 0
        out, before = tmp_path / "killed", len(server.bodies)
        script = [sys.executable, "-c", SCRIPT, server.url, str(out), name, str(tmp_path), str(Path(__file__).parent)]
        process = subprocess.Popen(script, env=environment() | {MARK: str(out)}, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: len(server.bodies) - before > usual // 2 or process.poll() is not None, 600)
        assert process.poll() is None
        kill(process)
        wait_for(lambda: not marked(str(out)))
        resumed = play(server.url, out, name, tmp_path, 1, resume=True).summary()
    assert digests(out) == digests(tmp_path / "calm")
    with RunReader.open(out) as reader:
        assert reader.check() == []
    with capsys.disabled():
        calls = calm.agent_calls
        print(
            f"\n{name}: {calm.usage.calls} calls, {calls.replayed} replayed in {calls.again} starts, "
            f"{calls.rewritten} rewritten, {calls.seconds:.0f} CPU s; after the kill {resumed.agent_calls.again} starts"
        )
