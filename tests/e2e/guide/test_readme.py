"""The README's examples, run as printed but for the addresses of servers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from commands import trunkline
from foreign import message, serving
from groves import with_ids
from places import ROOT

import trunkline as tl

README = ROOT / "README.md"


def look_it_up(body: dict) -> dict:
    """Calls the tool with the city of the question and answers with what it says."""
    if body["messages"][-1]["role"] == "tool":
        return message(f"It is <answer>{body['messages'][-1]['content']}</answer>")
    city = "Oslo" if "Oslo" in body["messages"][-1]["content"] else "Turku"
    return message(None, [("population", json.dumps({"city": city}))])


EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_library_example_works_as_printed(tmp_path: Path):
    (example,) = [found for found in EXAMPLES if "__main__" in found]
    assert "http://localhost:8000/v1" in example
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    with serving(look_it_up) as server:
        (tmp_path / "example.py").write_text(example.replace("http://localhost:8000/v1", server.url))
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ
        )
        asked = server.bodies[0]
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.rsplit(" ", 3)[1:3] for line in lines] == [["206073", "1.0"], ["717710", "1.0"]]
    assert asked["messages"][0] == {"role": "system", "content": "Answer with a number."}
    assert (tmp_path / "runs" / "cities.run").is_file()


def test_the_settings_of_tokens_are_as_printed():
    (example,) = [found for found in EXAMPLES if "TokenMode" in found]
    made: dict = {"tl": tl}
    exec(example, made)
    assert made["llm"].tokens == tl.TokenMode(api="chat", drift="bridge")


def test_the_arrays_of_a_run_are_as_printed():
    (example,) = [found for found in EXAMPLES if "train.batch" in found]
    made: dict = {
        "tl": tl,
        "run": [with_ids()],
        "numpy": numpy,
        "torch": SimpleNamespace(from_numpy=lambda array: array),
    }
    exec(example, made)
    assert made["ids"].tolist() == [1, 2, 3, 4, 3, 5, 3, 6]


TOOLS = '''
from trunkline import tool

@tool
def search(query: str) -> str:
    """Look something up."""
    return f"{query}: 206073"
'''
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


def test_the_commands_about_servers_work_as_printed(tmp_path: Path):
    (block,) = [found for found in re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL) if "--price" in found]
    (tmp_path / "questions.jsonl").write_text('{"question": "How many people live in Turku?", "answer": "206073"}\n')
    (tmp_path / "mytools.py").write_text(TOOLS)
    shown = []
    with serving(search_once) as first, serving(search_once) as second:
        assert block.count("http://localhost:8000/v1") == block.count("http://localhost:8001/v1") == 1
        block = block.replace("http://localhost:8000/v1", first.url).replace("http://localhost:8001/v1", second.url)
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


def test_the_team_works_as_printed():
    (example,) = [found for found in EXAMPLES if "tl.Team" in found]

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
    exec(example, made)
    tasks = [tl.Task.ask("How many people live in Turku?", "206073")]
    (tree,) = tl.run(made["Research"](model="small"), tasks, llm=tl.BatchLLM(generate))
    assert tree.answer == "206073"
    assert [node.agent for node in tree.nodes if node.kind.name == "TURN"] == [
        "verifier",
        "searcher",
        "verifier",
        "answerer",
    ]


def test_the_command_of_a_team_works_as_printed(tmp_path: Path, url: str):
    (block,) = [found for found in re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL) if "--team" in found]
    made, served, line = block.splitlines()
    assert served == "trunkline sim serve --port 8000 &"
    world, grep = made.split(" && ")
    done = trunkline(tmp_path, *shlex.split(world)[1:], "--documents", "200", "--questions", "40")
    assert done.returncode == 0, done.stderr
    subprocess.run(grep, shell=True, cwd=tmp_path, check=True)
    sums = len((tmp_path / "sums.jsonl").read_text().splitlines())
    done = trunkline(tmp_path, *shlex.split(line.replace("http://localhost:8000/v1", url))[1:])
    assert done.returncode == 0, done.stderr
    assert f"· {sums} tasks × 4 rollouts ·" in done.stdout


def test_the_commands_of_rewards_and_answers_work_as_printed(tmp_path: Path):
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    scoring, reading = (
        next(block for block in blocks if word in block) for word in ("trunkline score", "--aggregator")
    )
    (tmp_path / "questions.jsonl").write_text('{"question": "How many people live in Turku?", "answer": "206073"}\n')
    shown = []
    with serving(lambda _body: message("<answer>206,073</answer>")) as server:
        for line in (
            (scoring + reading).replace("http://localhost:8000/v1", server.url).replace("\\\n", " ").splitlines()
        ):
            done = trunkline(tmp_path, *shlex.split(line)[1:])
            assert done.returncode == 0, done.stderr
            shown.append(done.stdout)
        assert len(server.bodies) == 4, "nothing but the run asks the model"
    assert "pass^4" in shown[3]
    (answer,) = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    assert answer["answer"] == "206,073"
    (chat,) = map(json.loads, (tmp_path / "chats.jsonl").read_text().splitlines())
    assert (chat["weight"], chat["messages"][-1]["content"]) == (4, "<answer>206,073</answer>")


async def test_parallel_rollouts_work_as_printed(monkeypatch: pytest.MonkeyPatch):
    (example,) = [found for found in EXAMPLES if "parallel_rollout" in found]
    definition = {"type": "function", "function": {"name": "population", "parameters": {"type": "object"}}}
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-this-test")
    made: dict = {}
    with serving(look_it_up) as server:
        exec(example.replace("http://localhost:8000/v1", server.url), made)
        functions = {"population": lambda city: {"Turku": 206_073}[city]}
        assert await made["answer"]("How many people live in Turku?", [definition], functions) == "206073"
        assert len(server.bodies) == 16
