"""Agents of other frameworks, unmodified, against a server that answers by seeds: chains, forks, kills, masks."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from external_agents import PAGES
from foreign import Server, message, serving
from havoc import MARK, marked
from places import ROOT
from resuming import digests, environment, kill, wait_for

from trunkline.agent import Agent
from trunkline.cli.tables import table
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling
from trunkline.rollout.external.config import External
from trunkline.rollout.external.process import AgentRunner
from trunkline.runner.broken import judge
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.store.stats.summary import Summary
from trunkline.strategies.chain import Chain
from trunkline.strategies.partial import Partial
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.types import Task

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(3600)]

AGENTS = (
    "openai_agents",
    "langgraph_agent",
    "pydantic_agent",
    "smolagents_tools",
    "smolagents_code",
    "mini_swe_agent",
)
EXAMPLES = ROOT / "examples" / "agents"
PYTHON = os.environ.get("AGENTS_PYTHON", sys.executable)
TASKS = int(os.environ.get("AGENTS_TASKS", "12"))

STRATEGIES: dict[str, Any] = {
    "chains": Chain(2),
    "Tree-GRPO": TreeGRPO(trees=1, forks=1, rounds=1),
    "partial": Partial(top_k=1, samples=1, budget=2, region="all"),
}
"""Each makes two rollouts of a task: two starts, or one and a fork of it."""

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[7])
from test_agents import play, timed

if __name__ == "__main__":
    url, out, agent, folder, strategy, workers, _ = sys.argv[1:]
    with timed() as walls:
        play(url, Path(out), Path(agent), Path(folder), strategy, int(workers), resume=True)
    print(sum(walls))
"""

STAMPING = """
import os, time

def look(query):
    return f"{' '.join(map(str, query))} (at {time.time_ns()} by {os.getpid()})"
"""
STAMP = r"at \d+ by \d+"


def reply(body: dict[str, Any]) -> dict[str, Any]:
    """Looks things up by the seed, with whatever tools the agent has, then answers: two to five, the same for a task.

    So rollouts of a task are equally long, and runs differ in what they cost only by what their forks replay.
    """
    luck = random.Random(body.get("seed", 0))  # a probe of the server has none
    word = f"word{luck.randrange(9)}"
    asked = json.dumps(body["messages"])
    task = re.search(r"of (\d+)\?", asked)
    spoken = sum(one["role"] == "assistant" for one in body["messages"])
    said = _said(body, word, done=task is not None and spoken >= 2 + int(task[1]) % 4)
    text = json.dumps(said["choices"][0]["message"])
    pieces = [text[place : place + 4] for place in range(0, len(text), 4)]
    if body.get("logprobs"):
        tokens = [{"token": one, "logprob": -luck.random()} for one in pieces]
        listed = [one | {"top_logprobs": [one, {"token": "-", "logprob": -9.0}]} for one in tokens]
        said["choices"][0]["logprobs"] = {"content": listed}
    prompt = len(asked) // 4
    said["usage"] = {"prompt_tokens": prompt, "completion_tokens": len(pieces), "total_tokens": prompt + len(pieces)}
    return said


def _said(body: dict[str, Any], word: str, *, done: bool) -> dict[str, Any]:
    tools = {tool["function"]["name"] for tool in body.get("tools", ())}
    if "bash" in tools:
        end, stamp = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", ""
        if "the time" in json.dumps(body["messages"]):
            stamp = "; echo at $(date +%s%N) by $$"
        return message("I look.", [("bash", json.dumps({"command": f"{end if done else 'true'}; echo {word}{stamp}"}))])
    if "final_answer" in tools and done:
        return message(None, [("final_answer", json.dumps({"answer": word}))])
    if "search" in tools:
        return message(word) if done else message(None, [("search", json.dumps({"query": [word]}))])
    code = f'final_answer("{word}")' if done else f'print(search(query=["{word}"]))'
    return message(f"Thought: I look.\n<code>\n{code}\n</code>")


def play(url: str, out: Path, agent: Path, folder: Path, strategy: str, workers: int = 0, **options: Any) -> Any:
    """Run the agent of a script over the tasks."""
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in PAGES), "utf-8")
    process = {"env": [f"CORPUS={corpus}"], "seconds": 600.0}
    masks, what = options.pop("masks", ()), options.pop("what", "a page")
    program = External(agent=shlex.join([PYTHON, str(agent)]), effects="folder", process=process, masks=masks)
    tasks = [Task.ask(f"what is {what} of {number}?", id=f"q{number}") for number in range(TASKS)]
    llm = LLM(url, max_concurrency=2)
    given = {"strategy": STRATEGIES[strategy], "seed": 3, "workers": workers} | options
    model = Agent(model="m", sampling=Sampling(logprobs=True, top_logprobs=2))
    return run(model, tasks, llm=llm, program=program, out=out, **given)


@contextmanager
def timed() -> Iterator[list[float]]:
    """How long each start of an agent in this process takes, in seconds."""
    found: list[float] = []
    usual = AgentRunner.run

    async def run_timed(self: AgentRunner, *arguments: Any) -> Any:
        start = time.monotonic()
        try:
            return await usual(self, *arguments)
        finally:
            found.append(time.monotonic() - start)

    with mock.patch.object(AgentRunner, "run", run_timed):
        yield found


def begin(url: str, out: Path, agent: Path, folder: Path, strategy: str, workers: int = 0) -> subprocess.Popen[str]:
    """Begin a run in processes of its own; it prints how long agents took, unless it has workers."""
    given = [url, str(out), str(agent), str(folder), strategy, str(workers), str(Path(__file__).parent)]
    command, own = [sys.executable, "-c", SCRIPT, *given], environment() | {MARK: str(out)}
    said = subprocess.DEVNULL if workers else subprocess.PIPE
    return subprocess.Popen(command, env=own, stdout=said, stderr=subprocess.PIPE, text=True)


def play_at_once(agent: Path, folder: Path) -> dict[str, tuple[Summary, float]]:
    """Run under all strategies at the same time, so that the machine is the same for all; with the agents' time."""
    found = {}
    with ExitStack() as servers:
        urls = {strategy: servers.enter_context(serving(reply)).url for strategy in STRATEGIES}
        begun = {name: begin(url, folder / f"{name}-calm", agent, folder, name) for name, url in urls.items()}
        for strategy, process in begun.items():
            said, error = process.communicate(timeout=3000)
            assert process.returncode == 0, error
            with RunReader.open(folder / f"{strategy}-calm") as reader:
                found[strategy] = reader.summary(), float(said)
    return found


def kill_half_way(server: Server, usual: int, *given: Any) -> None:
    """Begin a run in two workers, and kill all of its processes once half of its usual requests came."""
    process = begin(server.url, *given, workers=2)
    wait_for(lambda: len(server.bodies) > usual // 2 or process.poll() is not None, 1200)
    assert process.poll() is None, process.communicate()[1]
    kill(process)
    wait_for(lambda: not marked(str(given[0])))


@pytest.mark.parametrize("name", AGENTS)
def test_chains_forks_and_kills(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = EXAMPLES / f"{name}.py"
    for strategy, (calm, wall) in play_at_once(agent, tmp_path).items():
        calls, usage, out = calm.agent_calls, calm.usage, tmp_path / strategy
        assert calm.terminations == {"answer": 2 * TASKS}, calm.failures
        assert calls is not None
        assert calls.diverged == calls.refused == 0
        assert (calls.again > 0) == (strategy != "chains")
        with serving(reply) as server:
            kill_half_way(server, usage.calls, out, agent, tmp_path, strategy)
            resumed = play(server.url, out, agent, tmp_path, strategy, resume=True).summary()
        assert resumed.agent_calls.diverged == 0
        assert digests(out) == digests(tmp_path / f"{strategy}-calm")
        figures = [
            f"{usage.calls} requests and {calls.replayed} replayed in {calls.again} starts",
            f"{calls.diverged} diverged, {calls.rewritten} rewritten",
            f"{usage.prompt + usage.generated} tokens, {calls.seconds:.1f} CPU s, {wall:.1f} s",
            f"after the kill {resumed.agent_calls.again} starts replayed {resumed.agent_calls.replayed}",
        ]
        with capsys.disabled():
            print(f"\n{name}, {strategy}: {'; '.join(figures)}", flush=True)


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("name", AGENTS)
def test_a_tool_that_says_the_time_and_its_process(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = tmp_path / f"{name}.py"
    shutil.copy(EXAMPLES / agent.name, agent)
    (tmp_path / "corpus.py").write_text(STAMPING, "utf-8")
    found = []
    for masks in ((), (STAMP,)):
        with serving(reply) as server:
            out = tmp_path / f"{len(masks)}"
            given = {"masks": masks, "what": "the time"}
            found.append(play(server.url, out, agent, tmp_path, "Tree-GRPO", **given).summary())
    plain, masked = (summary.agent_calls for summary in found)
    assert plain.diverged > 0
    assert found[0].terminations == {"answer": 2 * TASKS - plain.diverged, "lost": plain.diverged}
    assert judge(found[0], 1.0) == 1
    assert "agent_nondeterministic" in table(found[0])
    assert masked.masked > 0
    assert masked.diverged == 0
    assert found[1].terminations == {"answer": 2 * TASKS}, found[1].failures
    assert "agent_nondeterministic" not in table(found[1])
    with capsys.disabled():
        figures = f"{plain.diverged} of {plain.again} starts diverged; masked: 0 of {masked.again}"
        print(f"\n{name}: {figures}, {masked.masked} of {masked.replayed} calls differ", flush=True)
