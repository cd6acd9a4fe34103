"""An agent of the standard library alone, on llama.cpp's server: one slot, and one call in flight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from external_agents import run_plain
from llama_cpp_server import LlamaCpp
from resuming import digests

from trunkline.agent import Agent
from trunkline.llm.config import LLM
from trunkline.llm.request import Sampling


def test_the_trees_of_an_agent_are_the_same_again(serve: Callable[..., LlamaCpp], tmp_path: Path) -> None:
    found = []
    for number in range(2):
        server = serve({}, slots=1, context=8192)
        llm = LLM(server.url, siblings=False, max_concurrency=1)
        agent = Agent(model="words", max_turns=6, sampling=Sampling(max_tokens=40))
        run = run_plain(server.url, tmp_path / f"{number}", 0, tmp_path, llm=llm, agent=agent, env=["QUERY=text"])
        summary = run.summary()
        assert set(summary.terminations) <= {"answer", "max_turns"}, summary.failures
        assert summary.agent_calls.again > 0
        assert summary.agent_calls.diverged == 0
        found.append(digests(tmp_path / f"{number}"))
    assert found[0] == found[1]
