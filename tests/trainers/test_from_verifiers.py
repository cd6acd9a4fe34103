"""Environments of the real package verifiers: episodes as rollouts, forks, kills, limits, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import doc_pages
import pytest
from commands import trunkline
from foreign import message, serving
from havoc import MARK, marked
from places import ROOT
from resuming import digests, environment, kill, wait_for

import trunkline as tl
from trunkline._internal.serialization import load, pack
from trunkline.errors import ConfigError
from trunkline.tree.records import Failure

vf = pytest.importorskip("verifiers.v1")
pytestmark = [pytest.mark.trainers, pytest.mark.breaks_rollouts]

TREES = tl.TreeGRPO(trees=2, forks=2, rounds=1)
SUMS = {"id": "vf_sums", "size": 2}


def reply(body: dict[str, Any]) -> dict[str, Any]:
    """Looks once to three times, then answers; a modeled user ends the conversation after one or two turns."""
    seed, said = body["seed"], body["messages"]
    if "role-playing a USER" in str(said[0]["content"]):
        mine = [one for one in said if one["role"] == "assistant"]
        return message("###DONE###" if len(mine) > seed % 2 else f"Please {seed % 100}.")
    seen = [one for one in said if one["role"] == "tool"]
    if body.get("tools") and len(seen) <= seed % 3:
        return message(None, [("look", json.dumps({"place": seed % 7}))])
    return message(f"It is {seed % 10}")


def play(url: str, given: Any, *, out: Any = None, workers: int = 0, max_turns: int = 30, **options: Any) -> tl.Run:
    world = tl.from_verifiers(given, effects=options.pop("effects", "none"))
    agent = tl.Agent(model="m", max_turns=max_turns)
    usual: dict[str, Any] = {"reward": world.reward, "strategy": TREES, "seed": 5} | options
    return tl.run(agent, world.tasks, program=world.program, llm=url, out=out, workers=workers, **usual)


def named(run: tl.Run) -> dict[str, str]:
    return {tree.task.id: tree.digest() for tree in run}


PAIR = {
    "id": "user-sim",
    "taskset": SUMS,
    "user": {"harness": {"id": "vf_sums"}},  # that of the environment starts a process for each turn
}


@pytest.mark.parametrize(
    ("given", "roles"),
    [
        ({"taskset": SUMS}, {"agent"}),
        ({"taskset": SUMS | {"parts": True}}, {"agent"}),
        ({"taskset": SUMS, "id": "best-of-n", "n": 2}, {"agent"}),
        (PAIR, {"user", "assistant"}),
    ],
    ids=["one agent", "a prompt of messages", "best of two", "a modeled user"],
)
def test_episodes_are_rollouts_whose_trees_follow_from_the_seed(given: Any, roles: set[str]):
    with serving(reply) as server:
        first = play(server.url, given)
        assert len(server.bodies) == first.summary().usage.calls, "what is replayed costs nothing"
        assert named(play(server.url, given)) == named(first)
    summary = first.summary()
    assert summary.terminations == {"answer": summary.rollouts}
    assert summary.agent_calls.replayed > 0
    for rollout in (rollout for tree in first for rollout in tree.rollouts):
        assert {node.agent for node in rollout.nodes if node.kind.name == "TURN"} == roles
        traces = [one for one in rollout.final_info["traces"] if one["counts"]]
        assert rollout.reward == sum(one["reward"] for one in traces) / len(traces)
        for one in traces:
            assert one["reward"] == 2 * one["rewards"]["right"][0] + 0.5
            assert one["rewards"]["reward"] == [0.5, 1.0]
        if roles == {"agent"} and "id" not in given:
            assert traces[0]["metrics"]["looks"] == sum(node.message["role"] == "tool" for node in rollout.nodes)
            assert traces[0]["rewards"]["right"][0] == float(rollout.answer.endswith("1"))
            assert '"looks"' in rollout.note


def test_an_id_a_dict_a_configuration_and_an_environment_are_one(tmp_path: Path):
    config = vf.resolve_env_config({"taskset": {"id": "vf_sums"}})
    env = vf.load_environment(
        vf.resolve_env_config({"taskset": {"id": "vf_sums", "size": 9}, "agent": {"runtime": {"type": "subprocess"}}})
    )
    env.taskset = env.taskset.take(3)
    forms: list[Any] = ["vf-sums", {"taskset": {"id": "vf_sums"}}, config, env]
    worlds = [tl.from_verifiers(one, effects="none") for one in forms]
    for world in worlds:
        assert [task.messages[-1]["content"] for task in world.tasks] == ["Sum 0.", "Sum 1.", "Sum 2."]
        assert [task.reference for task in world.tasks] == [("0",), ("1",), ("2",)]
        assert load(pack(world.program, "program")).agent is world.program.agent
    assert len(tl.from_verifiers("vf-sums", limit=1).tasks) == 1
    with serving(reply) as server:
        runs = [
            tl.run(tl.Agent(model="m"), worlds[0].tasks, program=world.program, llm=server.url, seed=5, workers=0)
            for world in worlds
        ]
    assert len({json.dumps(named(run)) for run in runs}) == 1


SCRIPT = """
import sys
from test_from_verifiers import PAIR, play

if __name__ == "__main__":
    play(sys.argv[1], PAIR, out=sys.argv[2], workers=2, resume=True)
"""


@pytest.mark.timeout(600)  # three processes that import verifiers, on a machine that may be busy
def test_trees_are_the_same_in_workers_and_after_a_kill(tmp_path: Path):
    out = tmp_path / "killed"
    path = environment()["PYTHONPATH"] + f":{Path(__file__).parent}"
    with serving(reply, delay=0.05) as server:
        calm = named(play(server.url, PAIR))
        usual = len(server.bodies)
        command = [sys.executable, "-c", SCRIPT, server.url, str(out)]
        process = subprocess.Popen(
            command, env=environment() | {MARK: str(out), "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: len(server.bodies) > usual * 3 // 2 or process.poll() is not None, 300)
        assert process.poll() is None
        kill(process)
        wait_for(lambda: not marked(str(out)))
        resumed = play(server.url, PAIR, out=out, workers=2, resume=True)
    assert resumed.summary().agent_calls.diverged == 0
    assert named(resumed) == digests(out) == calm


def test_a_limit_of_the_run_ends_an_episode_which_its_environment_scores():
    with serving(reply) as server:
        run = play(server.url, {"taskset": SUMS}, strategy=tl.Chain(4), max_turns=1)
    rollouts = [rollout for tree in run for rollout in tree.rollouts]
    assert {str(rollout.termination) for rollout in rollouts} == {"max_turns"}
    assert {rollout.final_info["traces"][0]["stop"] for rollout in rollouts} == {"trunkline_limit"}
    assert {rollout.reward for rollout in rollouts} == {0.5}


def test_what_an_environment_does_wrong_is_of_its_rollout(monkeypatch: pytest.MonkeyPatch):
    import vf_sums

    async def broken(self: Any, trace: Any) -> float:
        raise ValueError("sk-proj-0123456789abcdefghijklmnopqrstuvwxyz \x1b[31m out of order")

    async def nothing(self: Any, trace: Any) -> float:
        return float("nan")

    async def endless(self: Any, trace: Any) -> dict[str, float]:
        return {f"{'long' * 20} {number}": 1.0 for number in range(2000)}

    async def ends(self: Any, trace: Any) -> float:
        sys.exit("the reward ends here")

    with serving(reply) as server:
        for wrong, said in (
            (broken, "out of order"),
            (ends, "the reward ends here"),
            (endless, "the agent's facts are"),
        ):
            monkeypatch.setattr(vf_sums.SumsTask, "right", vf.reward(wrong))
            run = play(server.url, {"taskset": SUMS}, strategy=tl.Chain(1))
            assert run.summary().terminations == {"lost": 2}, said
            for tree in run:
                shown = Failure.decode(tree.core.rollout(0).error or "").message
                assert said in shown
                assert "0123456789" not in shown
        monkeypatch.setattr(vf_sums.SumsTask, "right", vf.reward(nothing))
        run = play(server.url, {"taskset": SUMS}, strategy=tl.Chain(1))
        assert run.summary().terminations == {"answer": 2}
        assert all(tree.rollouts[0].reward != tree.rollouts[0].reward for tree in run), "not scored"


def agent(**changes: Any) -> dict[str, Any]:
    return {"taskset": SUMS, "agent": changes}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (agent(runtime={"type": "docker"}), "agent agent runs in docker"),
        (agent(runtime={"type": "prime"}), "agent agent runs in prime"),
        (agent(harness={"id": "codex"}), "'codex', which needs a container"),
        (agent(harness={"id": "bash"}), "'bash', which runs what the model writes"),
        ({"taskset": SUMS | {"image": "python:3.11"}}, "has the image 'python:3.11'"),
        ({"taskset": SUMS | {"rules": True}}, "has rules for its network"),
        ({"taskset": SUMS | {"endless": True}}, "is infinite: say how many"),
        ({"taskset": SUMS | {"size": 0}}, "has no task"),
        ({"taskset": SUMS, "max_concurrent_agents": None}, "max_concurrent_agents is None"),
        ({"taskset": SUMS, "id": "isolated-verifier"}, "IsolatedVerifierEnv verifies in a container"),
        (agent(sampling={"temperature": float("nan")}), "is another one when it is read from its JSON"),
        (agent(model="gpt-5"), "names the model 'gpt-5'"),
        (agent(client={"type": "eval", "headers": {"Authorization": "Bearer sk-abcdefghijklmnop"}}), "hold a key"),
        ("harbor", "HarborEnv verifies in a container of its own"),
        ("no-such-taskset", "cannot be made: ModuleNotFoundError"),
        ("json", "cannot be made"),
        ("", "cannot be made"),
        ("../../etc/passwd", "cannot be made"),
        ({}, "cannot be made"),
        ({"taskset": SUMS, "agnet": {}}, "agnet"),
        ({"k": "sk-abcdefghijklmnop", "taskset": SUMS}, "cannot be made"),
        ({"taskset": SUMS | {"size": "many"}}, "size"),
        ({"taskset": SUMS | {"id": 3}}, "cannot be made"),
        (3, "takes the id of a taskset"),
        (None, "takes the id of a taskset"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(given: Any, said: str):
    with pytest.raises(ConfigError, match=said) as refusal:
        tl.from_verifiers(given)
    assert "sk-abcdefghijklmnop" not in str(refusal.value)


def test_forks_and_foreign_tasks_are_refused():
    world = tl.from_verifiers({"taskset": SUMS})
    with serving(reply) as server:
        with pytest.raises(ConfigError, match="--effects"):
            tl.run(tl.Agent(model="m"), world.tasks, program=world.program, llm=server.url, strategy=TREES, workers=0)
        with pytest.raises(ConfigError, match="has no data of verifiers"):
            tl.run(tl.Agent(model="m"), [tl.Task.ask("?")], program=world.program, llm=server.url, workers=0)


def tool_reply(body: dict[str, Any]) -> dict[str, Any]:
    seen = [one for one in body["messages"] if one["role"] == "tool"]
    (tool,) = body["tools"]
    if len(seen) < 2:
        return message(None, [(tool["function"]["name"], json.dumps({"place": body["seed"] % 7}))])
    return message(f"It is {body['seed'] % 10}")


def test_tools_that_run_in_a_container_are_refused():
    with pytest.raises(ConfigError, match="tools Counter run in docker"):
        tl.from_verifiers({"taskset": {"id": "vf_tools", "task": {"counter": {"runtime": {"type": "docker"}}}}})


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_tool_servers_begin_anew_with_each_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])  # each is python -m vf_tools
    few = tl.TreeGRPO(trees=1, forks=1, rounds=1)
    with serving(tool_reply) as server:
        first, again = (play(server.url, "vf_tools", strategy=few) for _ in range(2))
    assert first.summary().terminations == {"answer": 2}
    assert first.summary().agent_calls.replayed > 0
    assert named(first) == named(again)
    for rollout in first["vf_tools:0"].rollouts:
        seen = [node.text for node in rollout.nodes if node.kind.name == "OBSERVATION"]
        places = [
            json.loads(call["function"]["arguments"])["place"]
            for node in rollout.nodes
            for call in node.message.get("tool_calls") or ()
        ]
        sums = [100 + sum(places[:number]) for number in (1, 2)]
        assert seen == [f"There is {place**2}, and so far {so_far}" for place, so_far in zip(places, sums, strict=True)]
        assert rollout.reward == 2


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_the_chat_loop_of_the_package_is_a_program_of_its_own():
    given = {"taskset": {"id": "vf_sums", "size": 1}, "agent": {"harness": {"id": "null"}}}
    with serving(reply) as server:
        first, again = (play(server.url, given, strategy=tl.Chain(2)) for _ in range(2))
        assert all("tools" not in body and "stream" not in body for body in server.bodies), (
            "the model is asked as usual"
        )
    assert first.summary().terminations == {"answer": 2}
    assert named(first) == named(again)


@pytest.mark.timeout(600)
def test_the_page(tmp_path: Path):
    (folder := tmp_path / "page").mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    done = doc_pages.run(ROOT / "docs/how-to/verifiers.md", folder, port=port)
    assert (done.code, done.kept_back) == (0, []), done.output
    assert len(re.findall(r"^\(0, \d\) [01]\.0 \{'words': \d+\.0\}$", done.output, re.MULTILINE)) == 4, (
        "with its metric"
    )
    assert "part words" in done.output


@pytest.mark.timeout(600)
def test_the_command_line(tmp_path: Path):
    words = ["--limit", "2", "--effects", "none", "--strategy", "tree-grpo:trees=2,forks=2,rounds=1", "--seed", "5"]
    with serving(reply) as server:
        where = ["-m", "m", "--base-url", server.url, "--pool", "inline", "--out", "run"]
        done = trunkline(tmp_path, "run", "--verifiers", "vf_sums", *words, *where)
        assert done.returncode == 0, done.stderr
        asked = len(server.bodies)
        again = trunkline(tmp_path, "resume", "run")
        assert again.returncode == 0, again.stderr
        assert len(server.bodies) == asked, "it was finished"
        assert digests(tmp_path / "run") == named(play(server.url, {"taskset": SUMS}))
