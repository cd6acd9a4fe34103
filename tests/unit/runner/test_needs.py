"""What strategies need of log-probs and token ids: refused before anything is paid, and runs where it is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.llm.capabilities import needs
from trunkline.llm.types import Reply, Request
from trunkline.sim.server.app import App, Server, start_server
from trunkline.sim.server.options import Settings
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.sim.world.files import write_world
from trunkline.sim.world.generator import make_world
from trunkline.store.datasets.loader import load_tasks
from trunkline.strategies.base import Fork, View
from trunkline.types import Task

SURE = tl.Sampling(logprobs=True, top_logprobs=10, max_tokens=600)
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    write_world(make_world(3, 200, 20), tmp_path)
    monkeypatch.setenv(CORPUS_VARIABLE, str(tmp_path / "corpus.jsonl"))
    return load_tasks(str(tmp_path / "questions.jsonl"), limit=3)


def agent(sampling: tl.Sampling = SURE) -> tl.Agent:
    return tl.Agent(model="sim-agent", tools=[search, visit], max_turns=8, sampling=sampling)


@asynccontextmanager
async def serving(**settings: object) -> AsyncIterator[Server]:
    server = await start_server(Settings(**settings))
    try:
        yield server
    finally:
        await server.stop()


class Looks:
    """Looks at a region, and forks nowhere."""

    def __init__(self, region: object, likeliest: object = 2) -> None:
        self.uncertain, self.likeliest = region, likeliest

    def rollouts(self) -> int:
        return 1

    def start(self, view: View) -> list[Fork]:
        return [Fork()]


class Mute:
    """An LLM of somebody's own."""

    async def complete(self, request: Request) -> Reply:
        raise AssertionError("nobody asks")

    async def close(self) -> None: ...


class Sized:
    """A strategy that says of its size what it is told to."""

    def __init__(self, **sizes: object) -> None:
        for hook, size in sizes.items():
            setattr(self, hook, size if callable(size) else lambda size=size: size)

    def rollouts(self) -> int:
        return 2

    def start(self, view: View) -> list[Fork]:
        return [Fork(n=2)]


def unsure() -> int:
    raise ValueError("it \x1b[31mdepends")


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (Sized(rollouts="2"), "strategy Sized: rollouts() must be a whole number from 1 to 4294967294, not '2'"),
        (
            Sized(rollouts=2**32),
            "strategy Sized: rollouts() must be a whole number from 1 to 4294967294, not 4294967296",
        ),
        (Sized(rollouts=unsure), "strategy Sized: rollouts() raised ValueError: it \\x1b[31mdepends"),
        (Sized(at_once=0), "strategy Sized: at_once() must be a whole number from 1 to 4294967294, not 0"),
        (Sized(at_once=unsure), "strategy Sized: at_once() raised ValueError: it \\x1b[31mdepends"),
        (Looks("all", "many"), "Looks: likeliest must be a whole number from 1 to 20, not 'many'"),
    ],
)
def test_what_a_strategy_says_of_itself_is_checked_before_a_run(strategy: object, says: str, tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        tl.run(agent(SURE), [Task.ask("q")], llm=Mute(), strategy=strategy, out=tmp_path / "r")
    assert str(caught.value) == says
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("strategy", "sampling", "llm", "words"),
    [
        (
            tl.strategies.Adaptive(),
            tl.Sampling(),
            tl.LLM(NOWHERE),
            ("Adaptive", "sampling.logprobs=True", "--top-logprobs 10"),
        ),
        (
            tl.strategies.Adaptive(),
            tl.Sampling(logprobs=True, top_logprobs=5),
            tl.LLM(NOWHERE),
            ("top_logprobs to 10 or more",),
        ),
        (Looks("tool"), tl.Sampling(logprobs=True), tl.LLM(NOWHERE), ("Looks", "region 'tool'", "to 2 or more")),
        (Looks("thinking"), SURE, tl.LLM(NOWHERE), ("Looks: uncertain must be one of think, tool, all, mixed",)),
        (Looks(["tool"]), SURE, tl.LLM(NOWHERE), ("Looks: uncertain must be one of think, tool, all, mixed",)),
        (Looks("all", "many"), SURE, tl.LLM(NOWHERE), ("Looks: likeliest must be a whole number",)),
        (
            tl.strategies.EntropyTree(),
            SURE,
            tl.LLM(NOWHERE),
            ("EntropyTree forks inside turns", "TokenMode(api='completions')"),
        ),
        (tl.strategies.EntropyTree(), SURE, tl.LLM(NOWHERE, tokens=tl.TokenMode(api="chat")), ("Adaptive", "TreeGRPO")),
        (tl.strategies.EntropyTree(), SURE, Mute(), ("forks inside turns",)),
    ],
)
def test_what_is_not_asked_for_or_cannot_be_done_is_said_before_anything_is_sent(
    strategy: object, sampling: tl.Sampling, llm: object, words: tuple[str, ...], tmp_path: Path
):
    with pytest.raises(ConfigError) as caught:
        tl.run(agent(sampling), [Task.ask("q")], llm=llm, strategy=strategy, out=tmp_path / "r")
    for part in words:
        assert part in str(caught.value)
    assert not (tmp_path / "r").exists()


async def test_a_server_without_log_probs_of_a_region_is_named_and_no_run_is_left(tasks: list[Task], tmp_path: Path):
    async with serving(tool_logprobs=False) as server:
        for strategy, region in (
            (tl.strategies.Adaptive(), "'all'"),
            (Looks("mixed"), "'mixed'"),
            (Looks("tool"), "'tool'"),
        ):
            with pytest.raises(ConfigError) as caught:
                await tl.arun(agent(), tasks, llm=server.base_url, strategy=strategy, workers=0, out=tmp_path / "r")
            for part in (server.base_url, region, type(strategy).__name__, "'sim-agent'", "hermes", "think", "Chain"):
                assert part in str(caught.value)
            assert not (tmp_path / "r").exists()
        able = await tl.arun(agent(), tasks, llm=server.base_url, strategy=Looks("think"), workers=0)
    assert [len(tree.rollouts) for tree in able] == [1, 1, 1]


async def test_an_adaptive_run_fills_every_task_and_is_the_same_for_any_workers(tasks: list[Task]):
    strategy = tl.strategies.Adaptive(total=6, initial=2)
    found = []
    async with serving() as server:
        for workers in (0, 2):
            run = await tl.arun(agent(), tasks, llm=server.base_url, strategy=strategy, workers=workers, seed=3)
            found.append({tree.task.id: tree.digest() for tree in run})
            assert all(len(tree.rollouts) == 6 for tree in run)
            paths = [rollout.path for tree in run for rollout in tree.rollouts]
    assert found[0] == found[1]
    assert any(len(path) > 2 for path in paths), "some branched"


async def test_an_entropy_tree_runs_over_ids_and_is_the_same_for_any_workers(tasks: list[Task]):
    strategy = tl.strategies.EntropyTree(chains=2, points=1, samples=2)
    found = []
    async with serving() as server:
        llm = tl.LLM(server.base_url, tokens=tl.TokenMode(api="completions"))
        for workers in (0, 2):
            run = await tl.arun(agent(), tasks, llm=llm, strategy=strategy, workers=workers, seed=3)
            found.append({tree.task.id: tree.digest() for tree in run})
            assert all(len(tree.rollouts) == 6 for tree in run)
    assert found[0] == found[1]


async def test_a_server_that_does_not_say_what_ids_spell_is_refused_before_the_run(
    tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def missing(*_: object) -> web.Response:
        raise web.HTTPNotFound

    monkeypatch.setattr(App, "_detokenize", missing)
    async with serving() as server:
        llm = tl.LLM(server.base_url, tokens=tl.TokenMode(api="completions"))
        with pytest.raises(ConfigError, match=r"/detokenize of token ids \(needed by forks inside turns"):
            await tl.arun(agent(), tasks, llm=llm, strategy=tl.strategies.EntropyTree(), workers=0, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_forks_inside_turns_need_text_of_ids_from_somebody():
    mode = tl.TokenMode(api="completions")
    assert "detokenize" in needs(mode, tools=True, inside=True)
    assert "detokenize" not in needs(mode, tools=True)
    local = tl.TokenMode(api="completions", tokenizer="tokenizer.json")
    assert "detokenize" not in needs(local, tools=True, inside=True)
