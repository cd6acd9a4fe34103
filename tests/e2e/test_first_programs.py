"""Programs and commands as users write them first, against servers that answer by a script."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from commands import trunkline
from foreign import message, serving
from groves import with_ids

import trunkline as tl


def look_it_up(body: dict) -> dict:
    """Calls the tool with the city of the question and answers with what it says."""
    if body["messages"][-1]["role"] == "tool":
        return message(f"It is <answer>{body['messages'][-1]['content']}</answer>")
    city = "Oslo" if "Oslo" in body["messages"][-1]["content"] else "Turku"
    return message(None, [("population", json.dumps({"city": city}))])


PROGRAM = '''
import trunkline as tl


@tl.tool
def population(city: str) -> int:
    """Look up how many people live in a city.

    Args:
        city: Name of the city.
    """
    return {"Oslo": 717_710, "Bergen": 291_940, "Turku": 206_073}[city]


if __name__ == "__main__":
    agent = tl.Agent(model="qwen3-8b", tools=[population], system="Answer with a number.", max_turns=8)
    tasks = [tl.Task.ask("How many people live in Turku?", "206073"), tl.Task.ask("And in Oslo?", "717710")]
    llm = tl.LLM("http://localhost:8000/v1", max_concurrency=256)
    run = tl.run(
        agent, tasks, llm=llm, strategy=tl.Chain(4), reward=tl.rewards.numeric_match, workers=2, out="runs/cities.run"
    )
    for tree in run:
        print(tree.task.id, tree.answer, tree.reward, tree.tokens.saved)
'''


def test_a_program_with_a_tool_grows_four_tries_of_two_tasks(tmp_path: Path):
    with serving(look_it_up) as server:
        (tmp_path / "example.py").write_text(PROGRAM.replace("http://localhost:8000/v1", server.url))
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ
        )
        asked = server.bodies[0]
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.rsplit(" ", 3)[1:3] for line in lines] == [["206073", "1.0"], ["717710", "1.0"]]
    assert asked["messages"][0] == {"role": "system", "content": "Answer with a number."}
    assert (tmp_path / "runs" / "cities.run").is_file()


def test_token_ids_are_bridged_unless_said_otherwise():
    llm = tl.LLM("http://localhost:8000/v1", tokens=tl.TokenMode(api="chat"))
    assert llm.tokens == tl.TokenMode(api="chat", drift="bridge")


def test_what_rollouts_share_stands_once_in_the_arrays_of_a_run():
    batch = tl.train.batch([with_ids()], estimator="tree_grpo", shared="once")
    columns = batch.tree(dtype="i64")
    assert numpy.asarray(columns["ids"]).tolist() == [1, 2, 3, 4, 3, 5, 3, 6]


TOOLS = '''
from trunkline import tool

@tool
def search(query: str) -> str:
    """Look something up."""
    return f"{query}: 206073"
'''
PRICED = r"""trunkline run questions.jsonl --model qwen3-8b --base-url http://localhost:8000/v1 \
    --base-url http://localhost:8001/v1 --tools mytools:search --dialect hermes --malformed repair \
    --rpm 6000 --tpm 2000000 \
    --price prompt=0.15,cached=0.075,generated=0.6 --seed 7 --cache answers.cache --out runs/priced.run
trunkline show runs/priced.run --calls
"""
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 400}}


def search_once(body: dict) -> dict:
    """Calls the tool in plain text, and forgets a brace; then answers with what it says."""
    said = body["messages"][-1]["content"]
    text = (
        "<answer>206073</answer>"
        if "206073" in said
        else '<tool_call>{"name": "search", "arguments": {"query": "Turku"}'
    )
    return message(text + ("" if "answer" in text else "</tool_call>")) | {"usage": USAGE}


def test_a_priced_run_over_two_servers_says_what_it_cost(tmp_path: Path):
    (tmp_path / "questions.jsonl").write_text('{"question": "How many people live in Turku?", "answer": "206073"}\n')
    (tmp_path / "mytools.py").write_text(TOOLS)
    shown = []
    with serving(search_once) as first, serving(search_once) as second:
        block = PRICED.replace("http://localhost:8000/v1", first.url).replace("http://localhost:8001/v1", second.url)
        for line in block.replace("\\\n", " ").splitlines():
            command = [sys.executable, "-m", "trunkline.cli", *shlex.split(line)[1:]]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ)
            assert done.returncode == 0, done.stderr
            shown.append(done.stdout)
        bodies = first.bodies + second.bodies
    assert len(bodies) == 2
    assert not any("tools" in body for body in bodies), "the dialect is plain text"
    cost = 2 * (600 * 0.15 + 400 * 0.075 + 100 * 0.6) / 1e6
    assert f"price                     {cost:.7f}" in shown[1]
    for text in (shown[0], *shown[2:]):
        assert f"{cost:.7f}  ({cost:.7f} per task, {cost:.7f} per solved task)" in text
    assert "p95" in shown[1]
    assert (tmp_path / "answers.cache").is_file()


TEAM = r"""
class Research(tl.Team):
    verifier = tl.Role(
        prompt="{question}\n{notes}\nEnough? <verify>yes</verify> or <verify>no</verify>", slots=["notes"]
    )
    searcher = tl.Role(
        prompt="{question}\n{notes}\nYour query: <search>...</search>",
        slots=["notes"],
        reads=tl.teams.Tag("search", keep="content"),
    )
    answerer = tl.Role(
        prompt="{question}\n{notes}\nYour answer: <answer>...</answer>",
        slots=["notes"],
        reads=tl.teams.Tag("answer", keep="content"),
        model="large",
    )

    async def play(self, rollout):
        notes = ""
        while rollout.step < 4:
            if "<verify>yes</verify>" in (await rollout.ask(self.verifier, notes=notes)).lower():
                break
            query = await rollout.ask(self.searcher, notes=notes)
            notes += (await rollout.observe(search, [query])).text
        return await rollout.ask(self.answerer, notes=notes)
"""


def test_a_team_of_three_roles_searches_until_its_verifier_is_content():

    @tl.tool
    def search(query: list[str]) -> str:
        """Look something up."""
        return f"{query[0]}: 206073 people."

    def generate(prompts: list[tl.llms.Prompt]) -> list[str]:
        return [said(prompt.messages[-1]["content"]) for prompt in prompts]

    def said(asked: str) -> str:
        if "Enough?" in asked:
            return f"<verify>{'Yes' if '206073' in asked else 'No'}</verify>"
        return "<search>Turku</search>" if "Your query" in asked else "<answer>206073</answer>"

    made: dict = {"tl": tl, "search": search, "__name__": __name__}
    exec(TEAM, made)
    tasks = [tl.Task.ask("How many people live in Turku?", "206073")]
    (tree,) = tl.run(made["Research"](model="small"), tasks, llm=tl.BatchLLM(generate))
    assert tree.answer == "206073"
    assert [node.agent for node in tree.nodes if node.kind.name == "TURN"] == [
        "verifier",
        "searcher",
        "verifier",
        "answerer",
    ]


SUMS = """trunkline sim world --out world && grep arithmetic world/questions.jsonl > sums.jsonl
trunkline sim serve --port 8000 &
trunkline run sums.jsonl --team math:rounds=4 --model sim-team --base-url http://localhost:8000/v1 --rollouts 4
"""


def test_the_command_of_a_team_plays_the_sums_of_a_world(tmp_path: Path, url: str):
    made, _served, line = SUMS.splitlines()
    world, grep = made.split(" && ")
    done = trunkline(tmp_path, *shlex.split(world)[1:], "--documents", "200", "--questions", "40")
    assert done.returncode == 0, done.stderr
    subprocess.run(grep, shell=True, cwd=tmp_path, check=True)
    sums = len((tmp_path / "sums.jsonl").read_text().splitlines())
    done = trunkline(tmp_path, *shlex.split(line.replace("http://localhost:8000/v1", url))[1:])
    assert done.returncode == 0, done.stderr
    assert f"· {sums} tasks × 4 rollouts ·" in done.stdout


READ = r"""trunkline run questions.jsonl --model qwen3-8b --base-url http://localhost:8000/v1 --rollouts 4 \
    --reward f1@0.5 --reward exact_match@0.5 --out runs/first.run
trunkline score runs/first.run --reward numeric_match --out runs/again.run
trunkline score runs/first.run --reward numeric_match
trunkline show runs/first.run --metrics
trunkline compare runs/first.run runs/again.run
trunkline report runs/first.run --extract
trunkline answers runs/first.run --aggregator weighted --by value --out answers.jsonl
trunkline export runs/first.run --out chats.jsonl
"""


def test_a_run_is_scored_twice_compared_reported_answered_and_exported(tmp_path: Path):
    (tmp_path / "questions.jsonl").write_text('{"question": "How many people live in Turku?", "answer": "206073"}\n')
    shown = []
    with serving(lambda _body: message("<answer>206,073</answer>")) as server:
        for line in READ.replace("http://localhost:8000/v1", server.url).replace("\\\n", " ").splitlines():
            done = trunkline(tmp_path, *shlex.split(line)[1:])
            assert done.returncode == 0, done.stderr
            shown.append(done.stdout)
        assert len(server.bodies) == 4, "nothing but the run asks the model"
    assert "pass^4" in shown[3]
    (answer,) = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    assert answer["answer"] == "206,073"
    (chat,) = map(json.loads, (tmp_path / "chats.jsonl").read_text().splitlines())
    assert (chat["weight"], chat["messages"][-1]["content"]) == (4, "<answer>206,073</answer>")


PARALLEL = """
from openai import AsyncOpenAI

from trunkline.compat import aggregate_results, run_parallel_rollouts


async def answer(question: str, tools: list[dict], functions: dict) -> str:
    async with AsyncOpenAI(base_url="http://localhost:8000/v1") as client:
        results = await run_parallel_rollouts(question, 8, client, "qwen3-8b", tools, tool_functions=functions)
    return aggregate_results(results, question)
"""


async def test_parallel_rollouts_ask_a_client_as_often_as_they_should(monkeypatch: pytest.MonkeyPatch):
    definition = {"type": "function", "function": {"name": "population", "parameters": {"type": "object"}}}
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-this-test")
    made: dict = {}
    with serving(look_it_up) as server:
        exec(PARALLEL.replace("http://localhost:8000/v1", server.url), made)
        functions = {"population": lambda city: {"Turku": 206_073}[city]}
        assert await made["answer"]("How many people live in Turku?", [definition], functions) == "206073"
        assert len(server.bodies) == 16
