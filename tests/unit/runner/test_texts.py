"""Texts in the library: what the command line takes as a text means the same in calls."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from atlas import agent, tasks
from groves import Try, grove

import trunkline as tl
from trunkline.errors import ConfigError, InputError
from trunkline.runner.options import with_defaults
from trunkline.scoring.filters import FILTERS
from trunkline.strategies import STRATEGIES
from trunkline.tools.tool import tool

LLM = tl.LLM("http://127.0.0.1:9/v1")


async def program(rollout: tl.programs.ProgramContext) -> str:
    """A program to be named."""
    return rollout.task.question


@tool
def look(where: str) -> str:
    """Look somewhere."""
    return where


@pytest.mark.parametrize(
    ("option", "text", "meant"),
    [
        ("strategy", "tree-grpo:trees=3,forks=2", tl.TreeGRPO(trees=3, forks=2)),
        ("strategy", "tree_grpo", tl.TreeGRPO()),
        ("strategy", "entropy_tree", tl.strategies.EntropyTree()),
        ("reward", "exact-match", tl.exact_match),
        ("reward", "numeric_match:relative=0.1", tl.rewards.Numeric(relative=0.1)),
        ("reward", "none", None),
        ("reward", ["f1@0.5"], tl.rewards.WeightedRewards({"f1": tl.rewards.F1()}, {"f1": 0.5})),
        ("program", f"{__name__}:program", program),
        ("budget", "tokens=1e6,money=5", tl.Budget(tokens=1_000_000, money=5)),
        ("task_budget", "calls=3", tl.Budget(calls=3)),
    ],
)
def test_an_option_takes_the_text_of_the_command_line(option: str, text: object, meant: object):
    assert with_defaults({option: text})[option] == meant  # type: ignore[typeddict-item,literal-required]


def test_filters_are_one_text_or_several():
    name = next(iter(FILTERS))
    one = FILTERS.make(name, "filters")
    assert with_defaults({"filters": name})["filters"] == [one]
    assert with_defaults({"filters": [name, one]})["filters"] == [one, one]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "tree-gro"}, r"strategy 'tree-gro': 'tree-gro' is none of .* \(did you mean tree-grpo\?\)"),
        ({"strategy": "tree-grpo:tree=2"}, r"'tree=2' is no option=value .* \(did you mean trees\?\)"),
        ({"reward": "exactmatch"}, r"reward 'exactmatch' is none of .* \(did you mean exact_match\?\)"),
        ({"reward": []}, r"reward must be a function of a trajectory, not \[\]"),
        ({"budget": "token=3"}, r"'token' is nothing that a budget limits \(did you mean tokens\?\)"),
        ({"program": "nowhere:program"}, r"program 'nowhere:program': cannot import 'nowhere'"),
    ],
)
def test_what_a_text_does_not_name_is_said_with_what_is_near(options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        tl.plan(agent(), tasks(), llm=LLM, **options)


def test_an_unknown_option_is_told_its_neighbour():
    with pytest.raises(TypeError, match=r"a run has no option 'stratgy' \(did you mean strategy\?\)"):
        tl.plan(agent(), tasks(), llm=LLM, stratgy="chain")
    with pytest.raises(AttributeError, match="has no attribute 'Tre'") as caught:
        tl.Tre  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("Tre", tl)


def test_hyphens_and_underscores_are_one_for_every_name():
    for name in STRATEGIES:
        assert name.replace("-", "_") in STRATEGIES
        assert STRATEGIES[name.replace("-", "_")] is STRATEGIES[name]


def test_tasks_are_read_from_a_path(tmp_path: Path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"id": "a", "question": "2 + 2?", "answer": "4"}) + "\n")
    for given in (path, str(path)):
        assert tl.plan(agent(), given, llm=LLM).tasks == 1
    with pytest.raises(InputError, match=r"there is no such file|no such"):
        tl.plan(agent(), tmp_path / "absent.jsonl", llm=LLM)


def test_an_agent_takes_tools_and_an_environment_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the folder, which will have a json.py, is not to stay there
    file = tmp_path / "tools_of_a_file.py"
    file.write_text(
        "import trunkline as tl\n\n\n@tl.tool\ndef echo(text: str) -> str:\n"
        '    """Say it again."""\n    return text\n\n\nclass Maze(tl.Environment):\n    """An environment."""\n\n\n'
        '@tl.tool\ndef step(maze: Maze) -> str:\n    """Walk."""\n    return "there"\n'
    )
    assert tl.Agent(model="m", tools=f"{__name__}:look").tools == [look]
    assert [one.name for one in tl.Agent(model="m", tools=[f"{file}:echo", look]).tools] == ["echo", "look"]
    walker = tl.Agent(model="m", tools=str(file), environment=f"{file}:Maze")
    assert [one.name for one in walker.tools] == ["echo", "step"]
    with pytest.raises(ConfigError, match=r"Agent: tools 'absent\.py': there is no such file"):
        tl.Agent(model="m", tools="absent.py")
    taken = tmp_path / "json.py"
    taken.write_text("")
    with pytest.raises(ConfigError, match="Python has another module called 'json': rename the file"):
        tl.Agent(model="m", tools=str(taken))


def test_an_aggregator_and_a_price_are_named():
    tree = grove([Try(["yes"]), Try(["no"]), Try(["no"])])
    for name in ("majority", "weighted:by=value"):
        assert asyncio.run(tl.aggregate(tree, name)).answer is not None
    with pytest.raises(ConfigError, match=r"did you mean majority\?"):
        asyncio.run(tl.aggregate(tree, "majorty"))
    priced = tl.LLM("http://127.0.0.1:9/v1", price="prompt=0.15,generated=0.6")
    assert priced.price == {"http://127.0.0.1:9/v1": tl.llms.Price(prompt=0.15, generated=0.6)}
