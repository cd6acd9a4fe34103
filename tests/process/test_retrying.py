"""Tries of a finished run that are asked again in its file."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from atlas import CAPITALS, agent, tasks
from commands import trunkline
from foreign import capital_cities, error, message, serving
from resuming import environment, wait_for

import trunkline as tl
from trunkline.errors import ConfigError, UsageError
from trunkline.scoring import notes
from trunkline.store.lock import is_written
from trunkline.train.selection import Rules, select

pytestmark = pytest.mark.breaks_rollouts


class Ward:
    """A server that refuses a third of all seeds while it is ill; of the rest it answers nothing to some at last."""

    def __init__(self, *, empty: bool = False) -> None:
        self.ill, self.empty = True, empty
        self.seeds: list[int] = []

    def __call__(self, body: dict) -> object:
        self.seeds.append(body["seed"])
        if self.ill and body["seed"] % 3 == 1:
            return error(400, "no such thing")
        if self.empty and self.ill and len(body["messages"]) > 1:
            return message("<answer> </answer>" if body["seed"] % 2 else "<answer>Oslo</answer>")
        return capital_cities(body)


def sown(out: Path, server: object, **options: object) -> tl.Run:
    llm = tl.LLM(server.url, siblings=False, max_retries=0)
    given = {"strategy": tl.Chain(3), "seed": 7, "workers": 0, "reward": tl.exact_match, "resume": True, "llm": llm}
    return tl.run(agent(), tasks(), out=out, **given | options)


def ends(run: tl.Run) -> Counter[str]:
    return Counter(rollout.termination.value for tree in run for rollout in tree.rollouts)


def whole(path: Path) -> None:
    with tl.RunReader.open(path) as reader:
        assert reader.check() == []


@pytest.mark.parametrize(
    "strategy", [tl.Chain(3), tl.Chain(3, avoid=True), tl.TreeGRPO(trees=2, forks=2), tl.strategies.MCTS()]
)
def test_what_broke_is_asked_again_by_the_next_draw_until_nothing_is_broken(strategy: object, tmp_path: Path):
    out, ward = tmp_path / "r", Ward()
    with serving(ward) as server:
        first = sown(out, server, strategy=strategy)
        before, summary = {tree.task.id: tree for tree in first}, first.summary()
        broken = summary.failed
        assert broken
        ward.ill = False
        again = sown(out, server, strategy=strategy, retry="broken")
        whole(out)
        after = again.summary()
        assert (after.failed, after.retried, after.terminations["retried"], after.chosen) == (0, broken, broken, 0)
        assert after.rollouts == summary.rollouts + broken
        assert after.usage.calls > summary.usage.calls
        assert after.tries == max(len(tree.rollouts) for tree in before.values())
        for tree in again:
            then = before[tree.task.id]
            for old, now in zip(then.rollouts, tree.rollouts, strict=False):
                assert (old.path, old.leaf.id, old.answer) == (now.path, now.leaf.id, now.answer)
                if now.termination == "retried":
                    said = notes.retried(now.note)
                    assert said is not None
                    assert (said.was, said.chosen, math.isnan(now.reward)) == (old.termination, False, True)
                    successor = tree.rollouts[said.by]
                    assert (successor.point.id, successor.path[:-1]) == (old.point.id, old.path[:-1])
                    assert successor.path not in {one.path for one in then.rollouts}
                    assert now.error == old.error
        calls = len(ward.seeds)
        assert ends(sown(out, server, strategy=strategy, retry="broken")) == ends(again)
        assert len(ward.seeds) == calls, "there is nothing to ask again"


class Unsure(Ward):
    """A ward that gives log-probs, drawn from the seed."""

    def __call__(self, body: dict) -> object:
        answer = capital_cities(body) if "seed" not in body else super().__call__(body)
        if isinstance(answer, dict):
            draws = random.Random(f"{body.get('seed')} {len(body['messages'])}")
            for choice in answer["choices"]:
                choice["logprobs"] = {"content": [self.token(draws, place) for place in range(6)]}
        return answer

    @staticmethod
    def token(draws: random.Random, place: int) -> dict:
        first = -2 * draws.random()
        top = [{"token": f"{place}.{rank}", "logprob": first - rank * draws.random()} for rank in range(10)]
        return top[0] | {"top_logprobs": top}


@pytest.mark.parametrize(
    "strategy",
    [tl.strategies.Adaptive(total=6, initial=2), tl.strategies.TreeSearch(width=2)],
    ids=["adaptive", "search"],
)
@pytest.mark.parametrize("budget", [9, 30, 1000])
def test_strategies_that_look_at_log_probs_ask_each_try_once(strategy: object, budget: int, tmp_path: Path):
    out, ward = tmp_path / "r", Unsure()
    player = msgspec.structs.replace(agent(), sampling=tl.Sampling(logprobs=True, top_logprobs=10))
    with serving(ward) as server:
        llm = tl.LLM(server.url, siblings=False, max_retries=0, max_concurrency=1)
        options = {"llm": llm, "strategy": strategy, "seed": 7, "workers": 0, "out": out, "resume": True}
        summary = tl.run(player, tasks(), budget=f"calls={budget}", **options).summary()
        assert summary.failed
        whole(out)
        ward.ill = False
        for retry in ("broken", "cut", "France"):
            tl.run(player, tasks(), budget="calls=1000", retry=retry, **options)
            whole(out)
        with tl.RunReader.open(out) as reader:
            assert {one.termination for tree in reader for one in tree.rollouts} <= {"answer", "retried", "censored"}
    seeds = [seed for seed in ward.seeds if seed is not None]
    assert len(seeds) == len(set(seeds)), "no try is asked twice"


def test_a_retry_can_break_and_be_retried(tmp_path: Path):
    out, ward = tmp_path / "r", Ward()
    with serving(ward) as server:
        broken = [sown(out, server).summary().failed]
        for _ in range(6):
            broken.append(sown(out, server, retry=["broken"]).summary().failed)
            whole(out)
    assert broken[-1] < broken[0]
    assert sown(out, server).summary().retried == sum(broken[:-1])


def test_a_retry_that_is_killed_is_continued_without_saying_it_again(tmp_path: Path):
    (tmp_path / "q.jsonl").write_text(
        "".join(
            json.dumps({"id": name, "question": f"Capital of {name}?", "answer": city}) + "\n"
            for name, city in CAPITALS.items()
        )
    )
    ward = Ward()
    with serving(ward, delay=0.05) as server:
        options = [
            "run",
            "q.jsonl",
            "-m",
            "m",
            "--base-url",
            server.url,
            "--tools",
            "atlas:lookup",
            "-r",
            3,
            "--seed",
            7,
        ]
        made = trunkline(tmp_path, *options, "-w", 0, "-o", "r.run", "--max-retries", 0, "-c", 4)
        assert made.returncode == 1, made.stderr
        shutil.copy(tmp_path / "r.run", tmp_path / "other.run")
        ward.ill = False
        sent = len(ward.seeds)
        killed = subprocess.Popen(
            [sys.executable, "-m", "trunkline.cli", "resume", "other.run", "--retry", "broken", "-w", "1"],
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        wait_for(lambda: len(ward.seeds) >= sent + 2)
        killed.kill()
        killed.wait()
        wait_for(lambda: not is_written(tmp_path / "other.run"))
        assert trunkline(tmp_path, "resume", "other.run", "-w", 0).returncode == 0
        assert trunkline(tmp_path, "resume", "r.run", "--retry", "broken", "-w", 0).returncode == 0
    digests = [
        {tree.task.id: tree.digest() for tree in tl.RunReader.open(tmp_path / name)} for name in ("r.run", "other.run")
    ]
    assert digests[0] == digests[1]
    whole(tmp_path / "other.run")


def test_what_is_chosen_by_its_result_is_said_everywhere_and_refused_where_it_would_flatter(tmp_path: Path):
    out, ward = tmp_path / "r", Ward(empty=True)
    with serving(ward) as server:
        first = sown(out, server)
        was = first.summary()
        shutil.copy(out, tmp_path / "before")
        ward.ill = False
        empty = [
            (tree.task.id, one.id)
            for tree in first
            for one in tree.rollouts
            if one.termination == "answer" and not (one.answer or "").strip()
        ]
        wrong = next((tree.task.id, one.id) for tree in first for one in tree.rollouts if one.answer == "Oslo")
        assert empty
        run = sown(out, server, retry=["empty", f"{wrong[0]}#{wrong[1]}"])
        whole(out)
    found = run.summary()
    assert (found.chosen, found.retried) == (len(empty) + 1, len(empty) + 1)
    assert found.accuracy.value > was.accuracy.value
    assert found.first_try == was.accuracy
    assert found.failed == was.failed, "what broke is not asked again by that"
    said = f"{len(empty) + 1} tries asked again because of their result"
    shown = trunkline(tmp_path, "show", "r")
    assert f"{said}; first-try accuracy" in shown.stdout
    assert json.loads(trunkline(tmp_path, "show", "r", "--json").stdout)["summary"]["chosen"] == len(empty) + 1
    assert said in trunkline(tmp_path, "export", "r", "-o", "x.jsonl").stderr
    refused = trunkline(tmp_path, "compare", "before", "r")
    assert refused.returncode == 2
    assert f"{said}, which favours the run" in refused.stderr
    assert "--allow-selected" in refused.stderr
    compared = trunkline(tmp_path, "compare", "before", "r", "--allow-selected")
    assert compared.returncode == 0, compared.stderr
    assert f"{said}; first-try accuracy" in compared.stdout
    tree = next(tree for tree in run if any(one.termination == "retried" for one in tree.rollouts))
    with pytest.raises(UsageError, match=r"asked again because of their result.*allow_selected=True"):
        select(tree, Rules("mask", "mask").check())
    chosen = select(tree, Rules("mask", "mask", allow_selected=True).check())
    retried = {one.id for one in tree.rollouts if one.termination == "retried"}
    assert {one.rollout for one in chosen} == {one.id for one in tree.rollouts} - retried


def test_a_budget_that_cut_tries_is_said_and_a_larger_one_goes_on_with_them(tmp_path: Path):
    out, ward = tmp_path / "r", Ward()
    ward.ill = False
    with serving(ward) as server:
        cut = sown(out, server, budget=tl.Budget(calls=17), llm=tl.LLM(server.url, siblings=False, max_concurrency=1))
        assert cut.state == "budget"
        went_on = sown(out, server, budget="calls=1000")
        whole(out)
        summary = went_on.summary()
        assert went_on.state == "done"
        assert summary.terminations["answer"] == 3 * len(CAPITALS)
        assert summary.tries == 3
        assert set(summary.terminations) <= {"answer", "retried"}


def test_what_cannot_be_asked_again_is_said_before_anything_changes(tmp_path: Path):
    out, ward = tmp_path / "r", Ward()
    with serving(ward) as server:
        sown(out, server)
        stored = out.read_bytes()
        for retry, words in (
            ("brokn", r'"brokn" is neither broken, cut nor empty, nor a task of the run.*did you mean broken\?'),
            ("France#9", 'task "France" has no try #9'),
            ("France#x", "is neither broken"),
            ("broken,,cut", "names nothing in one place"),
            ([], "retry must be broken, cut, empty, or ids of tasks"),
            (7, "retry must be broken, cut, empty, or ids of tasks"),
        ):
            with pytest.raises(ConfigError, match=words):
                sown(out, server, retry=retry)
        assert out.read_bytes() == stored
        with pytest.raises(ConfigError, match="is for a run that is resumed"):
            sown(tmp_path / "new", server, retry="broken", resume=False)
    told = trunkline(tmp_path, "resume", "r", "--retry", "empty")
    assert "there is no such try to ask again" in told.stderr


def test_ids_that_are_words_or_hold_commas_are_written_with_a_prefix(tmp_path: Path):
    names = ["broken", "a,b", "id:c", "c"]
    with serving(capital_cities) as server:
        questions = [tl.Task.ask("Capital of France?", "Paris", id=name) for name in names]
        llm = tl.LLM(server.url, siblings=False)
        options = {"llm": llm, "workers": 0, "seed": 7, "out": tmp_path / "r.run", "resume": True}
        tl.run(agent(), questions, **options)
        counts: Counter[str] = Counter()
        for options_of_retry, asked in (
            (["--retry", "id:broken", "--retry", "id:a,b#0"], {"broken": 1, "a,b": 1}),
            (["--retry", "id:id:c"], {"id:c": 1}),
            (["--retry", "c,id:c"], {"c": 1}),
        ):
            done = trunkline(tmp_path, "resume", "r.run", "-w", 0, *options_of_retry)
            assert done.returncode == 0, done.stderr
            with tl.RunReader.open(tmp_path / "r.run") as reader:
                rows = Counter(names[task] for task, row in reader.rollouts() if row.rollout > 0)
            counts.update(asked)
            assert rows == counts
        with pytest.raises(ConfigError, match='"id:d" is neither broken'):
            tl.run(agent(), questions, **options, retry="id:d")


@pytest.mark.parametrize("paid", range(4, 14))
def test_a_tree_for_which_nothing_was_paid_begins_with_a_larger_budget(paid: int, tmp_path: Path):
    out, ward = tmp_path / "r", Ward()
    ward.ill = False
    with serving(ward) as server:
        options = {"strategy": tl.TreeGRPO(trees=2, forks=1), "llm": tl.LLM(server.url, max_concurrency=1)}
        cut = sown(out, server, budget=f"rollouts={paid}", **options)
        assert cut.summary().refused
        begun = {tree.task.id for tree in cut if tree.rollouts}
        went_on = sown(out, server, budget="rollouts=1000", **options)
        whole(out)
        fresh = sown(tmp_path / "fresh", server, **options)
    assert went_on.state == "done"
    assert all(tree.rollouts for tree in went_on)
    for tree in fresh:
        if tree.task.id not in begun:
            assert went_on[tree.task.id].digest() == tree.digest()


async def thrice(rollout: tl.programs.ProgramContext) -> str:
    """A program that asks three times and remembers what was said."""
    said = []
    for step in range(3):
        said.append((await rollout.ask()).text)
        await rollout.observe(f"step {step}", by="desk")
    return " ".join(said)


@pytest.mark.parametrize("player", ["program", "team"])
def test_programs_and_teams_go_on_from_where_a_broken_branch_began(player: str, tmp_path: Path):
    ill = True

    def answer(body: dict) -> object:
        if ill and body["seed"] % 4 == 1:
            return error(400, "no such thing")
        return message(f"{body['seed'] % 7} of {len(body['messages'])}")

    with serving(answer) as server:
        options = {
            "llm": tl.LLM(server.url, siblings=False, max_retries=0),
            "strategy": tl.TreeGRPO(trees=2, forks=2),
            "seed": 3,
            "workers": 0,
            "reward": tl.exact_match,
            "resume": True,
            "out": tmp_path / "r",
        }
        who = tl.teams.MathTeam(model="m") if player == "team" else tl.Agent(model="m")
        options |= {} if player == "team" else {"program": thrice}
        made = tl.run(who, tasks(), **options)
        broken = made.summary().failed
        assert broken
        ill = False
        again = tl.run(who, tasks(), retry="broken", **options)
    whole(tmp_path / "r")
    assert (again.summary().failed, again.summary().retried) == (0, broken)
    if player == "program":
        rollouts = [one for tree in again for one in tree.rollouts]
        assert any(one.path[-2] > 0 for one in rollouts if one.termination == "retried")
        turns = {one.turns for one in rollouts if one.termination == "answer"}
        assert turns == {3}, "a branch goes on from what its program had done"


def test_what_a_budget_cut_is_asked_again_with_what_broke(tmp_path: Path):
    out, ward = tmp_path / "r", Ward()
    with serving(ward) as server:
        options = {"llm": tl.LLM(server.url, siblings=False, max_retries=0, max_concurrency=1)}
        cut = sown(out, server, budget="rollouts=8", **options)
        assert cut.summary().failed
        ward.ill = False
        sown(out, server, budget="rollouts=1000", retry="broken", **options)
        went_on = sown(out, server, budget="rollouts=1000", retry="cut", **options)
        whole(out)
    counts = Counter(one.termination for tree in went_on for one in tree.rollouts)
    assert counts["answer"] == 3 * len(CAPITALS)
    assert set(counts) <= {"answer", "retried"}


def test_what_the_budget_of_a_task_cut_is_asked_again_with_a_larger_one_alone(tmp_path: Path):
    out, ward = tmp_path / "r", Ward()
    with serving(ward) as server:
        first = sown(out, server, task_budget="calls=4").summary()
        assert first.terminations["censored"]
        ward.ill = False
        again = sown(out, server, task_budget="calls=4", retry="broken")
        whole(out)
        assert again.summary().ended == first.ended, "its tries stay cut"
        held, sent = again.summary().terminations["censored"], len(ward.seeds)
        with pytest.raises(ConfigError, match=rf"{held} tries cut by the budget of the task, task_budget=calls=4"):
            sown(out, server, task_budget="calls=4", retry="cut")
        assert len(ward.seeds) == sent
        larger = sown(out, server, task_budget="calls=100", retry="cut", resume="force")
        whole(out)
    assert set(larger.summary().terminations) == {"answer", "retried"}
    assert larger.summary().ended == {"finished": len(CAPITALS)}


def test_a_kept_tail_stays_where_it_was_cut_and_a_retry_is_played_to_its_end(tmp_path: Path):
    out, ward = tmp_path / "r", Ward()
    with serving(ward) as server:
        options = {"enough": 1, "cut_tail": "keep", "strategy": tl.Chain(6)}
        llm = tl.LLM(server.url, siblings=False, max_retries=0, max_concurrency=2)
        first = sown(out, server, llm=llm, **options)
        tails = {(tree.task.id, one.id): one.leaf.id for tree in first for one in tree.rollouts if not one.termination}
        assert first.summary().failed
        assert tails
        ward.ill = False
        for retry in ("broken", "France"):
            again = sown(out, server, retry=retry, **options)
            whole(out)
            assert again.summary().ended["enough"] >= first.summary().ended["enough"]
            assert {(task, number): again[task].rollouts[number].leaf.id for task, number in tails} == tails
    enough = {tree.task.id for tree in first if any(one.termination == "answer" for one in tree.rollouts)}
    new = [one for task in enough for one in again[task].rollouts[6:]]
    assert {one.termination for one in new} <= {"answer", "retried"}
