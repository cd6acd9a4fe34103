"""The usual examples of parallel rollouts and of a search over nodes, as they are written, over a simulated model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from trunkline.compat import Node, agentic_loop, aggregate_results, integrate, run_parallel_rollouts
from trunkline.scoring.rewards import exact_match
from trunkline.sim.tools import CORPUS_VARIABLE, search, visit
from trunkline.store.datasets.loader import load_tasks
from trunkline.tree.answers import normalise
from trunkline.types import Task

TOOLS = [search.definition, visit.definition]
FUNCTIONS = {"search": search.__wrapped__, "visit": visit.__wrapped__}


@pytest.fixture
def task(world: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setenv(CORPUS_VARIABLE, str(world / "corpus.jsonl"))
    return load_tasks(str(world / "questions.jsonl"), limit=2)[1]


async def test_rollouts_in_parallel_then_one_answer(url: str, task: Task):
    sent = answered = 0

    async def going(_request) -> None:
        nonlocal sent
        sent += 1

    async def coming(_response) -> None:
        nonlocal answered
        answered += 1

    http = DefaultAsyncHttpxClient(event_hooks={"request": [going], "response": [coming]})
    async with AsyncOpenAI(base_url=url, api_key="EMPTY", http_client=http) as client:
        results = await run_parallel_rollouts(
            task.question,
            num_rollouts=4,
            client=client,
            model="sim-agent",
            tools=TOOLS,
            tool_functions=FUNCTIONS,
            max_iterations=20,
            logprobs=True,
            top_logprobs=5,
            seed=3,
            reward=exact_match,
            reference=list(task.reference),
        )
        assert sent == answered > 4
        before = sent
        # Nobody has asked the simulated model to pick, so what it says may be of no use: one of the answers it is.
        chosen = await integrate(results, task.question, client, "sim-agent")
        assert before <= sent <= before + 2
    kept = json.loads(json.dumps(results, allow_nan=False))
    assert kept == results
    answer = aggregate_results(results, task.question)
    assert answer == aggregate_results(kept[::-1], task.question)
    voted = [result for result in results if result["termination"] == "answer"]
    assert voted
    assert {normalise(answer), normalise(chosen)} <= {normalise(result["answer"]) for result in voted}
    for result in results:
        assert result["usage"]["calls"] >= 2
        assert result["compressed_reasoning"]
        assert 0 < result["confidence"] < 1
        assert result["reward"] == float(result["answer"] in task.reference)
    shared = set(results[0]["nodes"]).intersection(*(result["nodes"] for result in results))
    assert shared, "the prompt, at least"


async def test_a_search_over_nodes(url: str, task: Task):
    root = Node()
    root.state = [{"role": "user", "content": task.question}]
    async with AsyncOpenAI(base_url=url, api_key="EMPTY") as client:
        for turn in range(3):
            node = root
            while len(node.children) >= 2:
                node = node.best_child(1.4)
            result = await agentic_loop(
                node.state, client, "sim-agent", TOOLS, max_iterations=20, tool_functions=FUNCTIONS, seed=turn
            )
            child = Node(parent=node)
            child.state = [*result["messages"], {"role": "user", "content": task.question}]
            child.compressed_reasoning = result["compressed_reasoning"]
            node.children.append(child)
            child.backpropagate(1.0 if result["answer"] in task.reference else 0.0)
    assert root.visits == 3
    assert len(root.children) == 2
    assert sum(len(child.children) for child in root.children) == 1
    below = [child.value for child in root.children] + [
        leaf.value for child in root.children for leaf in child.children
    ]
    assert set(below) <= {0.0, 0.5, 1.0}
    assert all(child.compressed_reasoning for child in root.children)


SCRIPT = """
import asyncio, json, sys
from openai import AsyncOpenAI
from trunkline.compat import aggregate_results, run_parallel_rollouts

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {
    "query": {"type": "array", "items": {"type": "string"}}}, "required": ["query"]}}}]

def search(query):
    return "No documents found."

async def main():
    client = AsyncOpenAI(base_url=sys.argv[1], api_key="EMPTY")
    results = await run_parallel_rollouts("Where was Ada Venn born?", 2, client, "sim-agent", TOOLS,
                                          tool_functions={"search": search}, max_iterations=3)
    await client.close()
    return results

results = asyncio.run(main())
print(json.dumps([result["termination"] for result in results]))
print(json.dumps(aggregate_results(results, "Where was Ada Venn born?")))
"""


def test_a_script_needs_no_main_guard(url: str, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), url],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    ended, answer = map(json.loads, done.stdout.splitlines())
    assert len(ended) == 2
    assert set(ended) <= {"answer", "max_turns"}
    assert isinstance(answer, str)
    assert list(tmp_path.iterdir()) == [script], "nothing stays on disk"
