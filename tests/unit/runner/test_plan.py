"""A run worked out before it starts: what it would do at most, and everything that would stop it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from atlas import agent, tasks

import trunkline as tl
from trunkline.errors import ConfigError, CrossingError, RunFileError

NOWHERE = "http://127.0.0.1:9/v1"


class Own(msgspec.Struct):
    """A strategy without a formula, or with one that breaks."""

    fault: bool = False

    def rollouts(self) -> int:
        return 3

    def start(self, view):
        yield tl.strategies.Fork(n=3)


class Told(Own):
    def formula(self) -> str:
        if self.fault:
            raise RuntimeError("no idea")
        return "\x1b[31mthree"


def planned(**options: object) -> tl.runs.Plan:
    return tl.plan(agent(), tasks(), llm=tl.LLM(NOWHERE), **options)


def test_it_counts_rollouts_turns_and_tokens():
    found = tl.plan(
        agent(sampling=tl.Sampling(max_tokens=50)),
        tasks(),
        llm=tl.LLM(NOWHERE),
        strategy=tl.TreeGRPO(),
        workers=2,
        seed=4,
    )
    # 5 tasks, 6 rollouts, 6 turns each.
    assert (found.tasks, found.rollouts, found.calls, found.generated) == (5, 6, 180, 9000)
    assert (found.workers, found.settings["seed"], found.out) == (2, 4, None)
    assert found.formula == "M (1 + N L) = 2 (1 + 2 x 1) = 6"
    assert planned().generated is None


def test_a_users_formula_is_optional_and_made_safe_to_print():
    assert planned(strategy=Own()).formula == "3"
    assert planned(strategy=Told()).formula == "\\x1b[31mthree"
    with pytest.raises(ConfigError, match=r"strategy Told raised in formula\(\): RuntimeError: no idea"):
        planned(strategy=Told(fault=True))


def test_what_would_stop_the_run_stops_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there = tmp_path / "r.run"
    there.write_text("something")
    with pytest.raises(RunFileError, match="choose another --out"):
        planned(out=there)
    with pytest.raises(ConfigError, match="there are no tasks"):
        tl.plan(agent(), [], llm=tl.LLM(NOWHERE))
    with pytest.raises(TypeError, match="no option 'stratgey'"):
        planned(stratgey=tl.Chain(2))
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)
    with pytest.raises(CrossingError, match="reward '<lambda>'"):
        planned(reward=lambda _: 1.0, workers=1)
    assert planned(reward=lambda _: 1.0, workers=0).workers == 0


def test_no_key_and_no_file_comes_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key")
    found = tl.plan(
        agent(),
        tasks(),
        llm=tl.LLM(NOWHERE, api_key="sk-given-secret-key"),
        labels={"api_key": "sk-other-secret-key"},
        out=tmp_path / "deep" / "r.run",
        cache=tmp_path / "answers",
    )
    written = msgspec.json.encode(found).decode()
    assert not any(secret in written for secret in ("very-secret", "given-secret", "other-secret"))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_key_and_tokens_that_cannot_be_rendered_are_found_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        tl.plan(agent(), tasks(), llm=tl.LLM())
    mode = tl.TokenMode(api="completions", tokenizer=str(tmp_path / "absent"))
    llm = tl.LLM(NOWHERE, tokens=mode)
    with pytest.raises(ConfigError, match=r"needs sampling\.max_tokens"):
        tl.plan(agent(), tasks(), llm=llm)
    with pytest.raises(ConfigError, match="absent"):
        tl.plan(agent(sampling=tl.Sampling(max_tokens=9)), tasks(), llm=llm)
