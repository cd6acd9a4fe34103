"""Rewards in whole runs: batches in workers, deadlines, weighted sums in the run file and on the command line."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from appraisers import Counting, lengths, patient
from atlas import CAPITALS, agent, tasks
from commands import only_line, started, trunkline
from foreign import capital_cities, error, serving

import trunkline as tl
from trunkline.errors import ConfigError, EndpointError
from trunkline.llm.config import LLM
from trunkline.runner.run import run
from trunkline.runner.stored_job import stored_job
from trunkline.scoring.notes import Graded, graded
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain

if TYPE_CHECKING:
    from pathlib import Path

    from trunkline.runner.result import Run
    from trunkline.tree.views import Trajectory


def atlas_run(url: str, reward: Any, workers: int = 0, **options: Any) -> Run:
    return run(
        agent(), tasks(), llm=LLM(url, max_concurrency=16, max_retries=0), strategy=Chain(3), seed=1,
        reward=reward, workers=workers, **options,
    )  # fmt: skip


def rewards_of(result: Run) -> dict[str, list[float]]:
    return {tree.task.id: [rollout.reward for rollout in tree.rollouts] for tree in result}


def test_batches_threads_and_processes_give_the_same_in_this_process_and_in_a_worker(tmp_path: Path) -> None:
    reward = tl.rewards.weighted(
        {"f1": (tl.rewards.F1(), 2), "letters": (Counting("o"), -0.5), "maths": tl.rewards.Math(), "long": lengths}
    )
    found = []
    with serving(capital_cities) as server:
        for workers in (0, 1):
            result = atlas_run(server.url, reward, workers, out=tmp_path / f"{workers}.run")
            found.append(rewards_of(result))
            for tree in result:
                capital = CAPITALS[tree.task.id]
                for rollout in tree.rollouts:
                    assert graded(rollout.note) == [
                        Graded("f1", 1.0, 2),
                        Graded("letters", capital.count("o"), -0.5),
                        Graded("maths", 1.0, 1.0),
                        Graded("long", len(capital), 1.0),
                    ]
    assert found[0] == found[1]
    assert found[0]["Benin"] == [2 * 1.0 - 0.5 * 4 + 1.0 + len("Porto-Novo")] * 3
    with RunReader.open(tmp_path / "1.run") as reader:
        assert reader.check() == []
        assert [len(graded(row.note)) for _, row in reader.rollouts()] == [4] * 15
        stored = stored_job(tmp_path / "1.run", reader.meta)[0]
    assert stored.reward == reward


def test_mathematics_is_compared_by_processes_of_a_worker() -> None:
    # "It is Porto-Novo" has to be looked at as mathematics before it is wrong.
    asked = [tl.Task.ask("Capital of Chile?", "x^2 + 1", id="Chile"), tl.Task.ask("Capital of Benin?", "\\frac{1}{2}")]
    with serving(capital_cities) as server:
        result = run(
            agent(), asked, llm=LLM(server.url, max_retries=0), reward=tl.rewards.Math(timeout=60), workers=1, seed=1
        )
    assert list(rewards_of(result).values()) == [[0.0], [0.0]]


def test_what_is_late_in_a_thread_leaves_its_rollouts_unscored_and_no_others(tmp_path: Path) -> None:
    reward = tl.rewards.weighted({"patience": patient, "exact": tl.exact_match})
    with serving(capital_cities) as server:
        result = atlas_run(server.url, reward, out=tmp_path / "late.run")
    found = rewards_of(result)
    assert all(math.isnan(value) for value in found.pop("Japan"))
    assert set(map(tuple, found.values())) == {(2.0,) * 3}
    said = graded(result["Japan"].rollouts[0].note)
    assert said == [Graded("patience", None, 1.0, "patience gave no result within 0.2 s"), Graded("exact", 1.0, 1.0)]
    shown = trunkline(tmp_path, "show", "late.run", "--metrics").stdout
    parts = {line.split()[1]: line.split()[2] for line in shown.splitlines() if line.startswith("part ")}
    assert parts == {"patience": "4", "exact": "5"}
    drawn = trunkline(tmp_path, "show", "late.run", "--task", "Japan").stdout
    assert "unscored: patience gave no result within 0.2 s" in drawn
    data = json.loads(trunkline(tmp_path, "show", "late.run", "--task", "Japan", "--json").stdout)
    assert data["metrics"]["parts"]["exact"]["value"] == 1.0
    assert data["tree"]["rollouts"][0]["graded"][1] == {"reward": "exact", "value": 1.0, "weight": 1.0, "why": ""}


def test_why_a_reward_has_no_value_is_shown_and_is_no_part_of_it(tmp_path: Path) -> None:
    with serving(capital_cities) as server:
        said = atlas_run(server.url, broken, out=tmp_path / "b.run")
    why = "broken raised RuntimeError: no\\x1b judge"
    assert graded(said["Japan"].rollouts[0].note) == [Graded("broken", None, 1.0, why)]
    assert f"unscored: {why}" in trunkline(tmp_path, "show", "b.run", "--task", "Japan").stdout
    assert "no metrics: nothing is scored" in trunkline(tmp_path, "show", "b.run", "--metrics").stdout


def told(trajectory: Trajectory) -> dict[str, object]:
    return {"reward": trajectory.answer == "Tokyo", "words": len(trajectory.answer.split()), "why": "a rule"}


def test_a_dict_is_a_reward_with_parts(tmp_path: Path) -> None:
    with serving(capital_cities) as server:
        result = atlas_run(server.url, told, out=tmp_path / "d.run", workers=1)
    assert set(map(tuple, rewards_of(result).values())) == {(0.0,) * 3, (1.0,) * 3}
    with RunReader.open(tmp_path / "d.run") as reader:
        assert reader.check() == []
        notes = {tuple(graded(row.note)) for _, row in reader.rollouts()}
    assert notes == {(Graded("words", 1.0, 0.0), Graded("why", None, 0.0, "a rule"))}
    shown = trunkline(tmp_path, "show", "d.run", "--metrics").stdout
    assert [line.split()[1:3] for line in shown.splitlines() if line.startswith("part ")] == [["words", "5"]], "tasks"


def broken(trajectory: Trajectory) -> float:
    raise RuntimeError("no\x1b judge")


class Opens:
    """Notes when it is opened and closed."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def opened(self) -> Opens:
        self.log.append("opened")
        return self

    def __call__(self, trajectory: Trajectory) -> float:
        assert self.log == ["opened"]
        return 1.0

    async def close(self) -> None:
        self.log.append("closed")


@pytest.mark.parametrize("broken", [False, True], ids=["done", "refused"])
def test_what_a_reward_opens_is_open_while_the_run_lasts(broken: bool) -> None:
    reward = Opens()
    with serving((lambda body: error(401, "no", "bad")) if broken else capital_cities) as server:
        if broken:
            with pytest.raises(EndpointError):
                atlas_run(server.url, reward)
        else:
            assert set(map(tuple, rewards_of(atlas_run(server.url, reward)).values())) == {(1.0,) * 3}
    assert reward.log == ["opened", "closed"]


def test_a_run_is_not_gone_on_with_under_another_reward(tmp_path: Path) -> None:
    path = tmp_path / "r.run"
    with serving(capital_cities) as server:
        atlas_run(server.url, Counting("o"), out=path)
        with RunReader.open(path) as reader:
            assert reader.settings["reward"] == "Counting(letter=o)"
        for other in (Counting("p"), Counting(), tl.rewards.weighted({"a": Counting("o")})):
            with pytest.raises(ConfigError, match="reward"):
                atlas_run(server.url, other, out=path, resume=True)
        sent = len(server.bodies)
        again = atlas_run(server.url, Counting("o", batch=2), out=path, resume=True)
        assert len(server.bodies) == sent
    assert again.summary().scored == 15


def test_a_reward_that_cannot_be_asked_as_it_says_is_refused_before_anything_is_sent() -> None:
    with serving(capital_cities) as server:
        with pytest.raises(ConfigError, match="Counting: reward: batch must be"):
            atlas_run(server.url, Counting(batch=0))
        with pytest.raises(ConfigError, match=r"not the class F1: give one of it, F1\(\)"):
            atlas_run(server.url, tl.rewards.F1)
        assert server.bodies == []


def test_several_rewards_with_weights_on_the_command_line(tmp_path: Path) -> None:
    rows = [{"id": c, "question": f"Capital of {c}?", "answer": f"city of {a}"} for c, a in CAPITALS.items()]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--reward", "f1@0.5", "--reward", "appraisers:Counting:letter=o@0.25"]

    with serving(capital_cities) as server:
        command = (
            "run", "questions.jsonl", "-m", "m", "--base-url", server.url, "--tools", "atlas:lookup", "-w", "0",
            "--out", "r.run", "--seed", "1", "--json",
        )  # fmt: skip
        done = started(*command, *given, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        # What is refused needs no process of its own.
        other = trunkline(tmp_path, *command, "--reward", "f1@0.75", *given[2:])
        assert other.returncode == 2
        assert "reward" in other.stderr
        unknown = trunkline(tmp_path, *command, "--reward", "f2")
        assert unknown.returncode == 2
        assert "'f2' is none of exact_match" in only_line(unknown.stderr)
    with RunReader.open(tmp_path / "r.run") as reader:
        assert reader.settings["reward"] == (
            "WeightedRewards(rewards={f1: F1, Counting: Counting(letter=o)}, weights={f1: 0.5, Counting: 0.25})"
        )
        france = next(row for number, row in reader.rollouts() if number == 0)
    assert france.reward == 0.5 * 0.5
    assert [part.reward for part in graded(france.note)] == ["f1", "Counting"]
