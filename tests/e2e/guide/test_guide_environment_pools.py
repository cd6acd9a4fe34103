"""The guide to pools of environments: its examples, run as printed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import fake_docker
import pytest
from foreign import message, serving
from places import ROOT

import trunkline as tl
from trunkline.errors import ConfigError

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/environment-pools.md").read_text("utf-8"), re.DOTALL)


def shopper(body: dict) -> dict:
    """Orders once or twice, by the seed, and answers."""
    turns = sum(each["role"] == "assistant" for each in body["messages"])
    if turns > body["seed"] % 2:
        return message("<answer>done</answer>")
    return message(None, [("order", json.dumps({"item": "tea"}))])


def test_the_first_example_runs():
    pool, *_ = EXAMPLES
    names = {"__name__": "__main__"}
    exec(compile(pool, "environment-pools.md", "exec", dont_inherit=True), names)
    tasks = [tl.Task.ask("Order.", id=f"t{number}") for number in range(3)]
    with serving(shopper) as server:
        done = tl.run(
            names["agent"], tasks, llm=server.url, strategy=tl.Chain(4), reward=names["one_order"], workers=0, seed=1
        )
    rewards = {rollout.reward for tree in done for rollout in tree.rollouts}
    assert rewards == {0.0, 1.0}


def test_the_others_make_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, sandbox, container = EXAMPLES
    program = tmp_path / "docker"
    program.write_text(f"#!{sys.executable}\n" + Path(fake_docker.__file__).read_text("utf-8"))
    program.chmod(0o755)
    names = {"tl": tl}
    try:
        exec(compile(sandbox, "environment-pools.md", "exec", dont_inherit=True), names)
    except ConfigError as refused:
        assert "cannot be confined here" in str(refused)  # noqa: PT017
    monkeypatch.setenv("PATH", str(tmp_path))
    exec(compile(container, "environment-pools.md", "exec", dont_inherit=True), names)
    assert [tool.name for tool in names["agent"].tools] == ["run", "read_file", "write_file"]
