"""Tools that programs run count as those that models call: in usage, in times, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunkline.agent import Agent
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.batch.completion import Prompt
from trunkline.rollout.programs.context import ProgramContext
from trunkline.runner.run import run
from trunkline.store.reader import RunReader
from trunkline.team.builtin import SearchTeam
from trunkline.tools.tool import tool
from trunkline.types import Task

TASKS = [Task.ask(f"What is {number}?", "4", id=str(number)) for number in range(3)]


@tool
def search(query: str) -> str:
    """Search, which fails for the second step."""
    if query == "step 2":
        raise RuntimeError("the index is away")
    return f"about {query}"


def says(text: str) -> str:
    """A verifier who is content at the third step, and the others."""
    if "You are the verifier" in text:
        return "<verify>yes</verify>" if "step 3" in text else "<verify>no</verify>"
    if "You are the answerer" in text:
        return "<think>hm</think><answer>4</answer>"
    return f"<think>hm</think><search>step {1 + text.count('<search>step')}</search>"


def generate(prompts: list[Prompt]) -> list[str]:
    return [says(prompt.messages[-1]["content"]) for prompt in prompts]


async def twice(rollout: ProgramContext) -> str:
    """A program that runs a tool whose result is appended, and one whose result is not."""
    await rollout.ask()
    await rollout.observe((seen := await rollout.tool(search, query="a")).text, by="search", seen=seen)
    await rollout.tool(search, query="b")
    return (await rollout.ask()).text


def test_searches_of_a_team_are_tool_calls(tmp_path: Path):
    result = run(SearchTeam(model="m", tool=search), TASKS, llm=BatchLLM(generate), seed=1, out=tmp_path / "run")
    usage = result.summary().usage
    assert {tree.answer for tree in result} == {"4"}
    assert (usage.tools, usage.tool_errors) == (6, 3)
    (used,) = result.profile().tools
    assert (used.name, used.calls, used.failed) == ("search", 6, 3)
    with RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []


def test_what_a_program_does_not_append_takes_time_all_the_same():
    result = run(Agent(model="m"), TASKS[:1], program=twice, llm=BatchLLM(generate), seed=1)
    (used,) = result.profile().tools
    assert (used.calls, result.summary().usage.tools) == (2, 1)


def test_a_tool_that_was_run_before_a_stop_is_counted_once(tmp_path: Path):
    asked = 0

    def breaks(prompts: list[Prompt]) -> list[str]:
        nonlocal asked
        asked += 1
        if asked == 5:
            raise KeyboardInterrupt
        return generate(prompts)

    def goes(**options: object) -> object:
        team = SearchTeam(model="m", tool=search)
        return run(team, TASKS, llm=BatchLLM(breaks), seed=1, out=tmp_path / "run", **options)

    with pytest.raises(KeyboardInterrupt):
        goes()
    result = goes(resume=True)
    assert result.summary().usage.tools == 6
    assert result.profile().tools[0].calls == 6
