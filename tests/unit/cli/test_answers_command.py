"""``trunkline answers``: what it prints and writes of a run, with and without a model, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from commands import trunkline
from groves import Try, grove
from pickers import Scripted

from trunkline.agent import Agent
from trunkline.cli.post import answers_of
from trunkline.errors import LLMError
from trunkline.runner.run import run
from trunkline.scoring.aggregators.base import Candidate, Decision
from trunkline.scoring.aggregators.llm import Integrate, Synthesis
from trunkline.scoring.aggregators.voting import Majority
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.types import Task, Usage

pytestmark = pytest.mark.breaks_rollouts

SAID = {
    "most": ["Paris", "paris", "Rome"],
    "tied": ["b", "A", ""],
    "sure": ["no", "no", "yes"],
    "broken": [LLMError("gone", retryable=False)] * 3,
    "free": ["1/2", "0.5", "\x1b[2J"],
}
ACCEPTED = {"most": "Paris", "tied": "b", "sure": "yes", "broken": "x"}
SURE = {"yes": 0.9, "no": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of five questions, three tries each."""
    left = {name: list(said) for name, said in SAID.items()}

    def say(_system: str, user: str) -> str | Exception:
        said = left[user].pop(0)
        if isinstance(said, Exception):
            return said
        return f"<answer>{said}</answer> <confidence>{SURE.get(said, 0.5)}</confidence>"

    made = tmp_path_factory.mktemp("answers")
    tasks = [Task.ask(name, ACCEPTED.get(name), id=name) for name in SAID]

    run(
        Agent(model="m"),
        tasks,
        llm=Scripted(say),
        strategy=Chain(3),
        reward=exact_match,
        workers=0,
        out=made / "a.run",
    )
    return made


def rows(folder: Path, *options: object) -> dict[str, dict]:
    done = trunkline(folder, "answers", "a.run", "--json", *options)
    assert done.returncode == 0, done.stderr
    return {row["task"]: row for row in json.loads(done.stdout)["answers"]}


def test_one_line_a_task_and_what_they_come_to(folder: Path) -> None:
    done = trunkline(folder, "answers", "a.run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:6] == [
        "task    answer  votes",
        "most    Paris     2/3",
        "tied    A         1/2  tied",
        "sure    no        2/3",
        "broken  -         0/0",
        "free    0.5       2/3",
    ]
    assert "answers   4 of 5 tasks, 1 tied" in done.stdout
    assert "accuracy  0.333" in done.stdout
    assert "of 3 tasks with reference answers" in done.stdout, "where every try broke nothing was measured"
    assert "model" not in done.stdout
    assert "\x1b" not in done.stdout


def test_json_holds_the_evidence(folder: Path) -> None:
    found = rows(folder)
    assert found["most"]["parties"] == [
        {"answer": "Paris", "voters": [0, 1], "weight": 2.0},
        {"answer": "Rome", "voters": [2], "weight": 1.0},
    ]
    assert {name: row["correct"] for name, row in found.items()} == {
        "most": True,
        "tied": False,
        "sure": False,
        "broken": None,
        "free": None,
    }
    assert (found["tied"]["tied"], found["tied"]["method"]) == (True, "majority")


def test_weights_decide_where_they_are_known(folder: Path) -> None:
    assert rows(folder, "-a", "weighted", "--by", "verbalised")["sure"]["answer"] == "yes"
    assert rows(folder, "-a", "weighted:by=reward")["sure"]["answer"] == "yes"
    assert rows(folder, "-a", "best")["tied"]["answer"] == "b"
    done = trunkline(folder, "answers", "a.run", "-a", "weighted")
    assert "fallback  4 tasks: no try has a confidence, so every vote weighs the same" in done.stdout


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ((), ""),
        (("-a", "weighted"), ""),
        (("-a", "weighted", "--by", "verbalised"), ""),
        (("-a", "best:by=confidence"), ""),
        (("-a", "weighted", "--by", "value"), "value"),
        (("-a", "best:by=confidence", "--by", "reward"), "reward"),
        (("-a", "best", "--by", "entropy"), "reward"),
        (("-a", "weighted:by=value"), "value"),
    ],
    ids=range(8),
)
def test_it_is_said_where_accepted_answers_had_a_part_in_it(
    folder: Path, options: tuple[str, ...], source: str
) -> None:
    shown = trunkline(folder, "answers", "a.run", *options).stdout
    told = [line for line in shown.splitlines() if line.startswith("labels")]
    begin = f"labels    {source} comes from the run's reward (exact_match), which had the reference answers at hand: "
    assert [line[: len(begin)] for line in told] == ([begin] if source else [])
    assert json.loads(trunkline(folder, "answers", "a.run", "--json", *options).stdout)["reads_reference"] == bool(
        source
    )
    assert ("unused    --by entropy: best goes by the reward" in shown) == ("entropy" in options)


def test_a_source_that_nothing_weighs_is_said(folder: Path) -> None:
    shown = trunkline(folder, "answers", "a.run", "--by", "value").stdout
    assert "unused    --by value: majority counts votes alike" in shown
    assert "labels" not in shown


def test_out_is_written_whole_and_overwrites_nothing(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    done = trunkline(folder, "answers", "a.run", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "written" in done.stdout
    assert [json.loads(line) for line in out.read_text().splitlines()] == list(rows(folder).values())
    assert list(tmp_path.iterdir()) == [out]
    again = trunkline(folder, "answers", "a.run", "--out", out)
    assert (again.returncode, "exists: name another file" in again.stderr) == (2, True)


def test_a_model_picks_and_is_asked_only_where_tries_differ(folder: Path, url: str) -> None:
    for name in ("synthesis", "integrate"):
        done = trunkline(folder, "answers", "a.run", "-a", name, "-m", "sim-picker", "--base-url", url)
        assert done.returncode == 0, done.stderr
        assert "model     " in done.stdout
        assert "broken  -         0/0" in done.stdout
    found = rows(folder, "-a", "synthesis:seed=3", "-m", "sim-picker", "--base-url", url)
    assert found["broken"]["usage"]["calls"] == 0
    assert found["most"]["usage"]["calls"] >= 1
    assert all(row["answer"] in SAID[name] for name, row in found.items() if name != "broken")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-a", "synthesis"], "it asks a model: name it with --model"),
        (["-m", "m"], "asks no model; synthesis and integrate do"),
        (["--base-url", "http://127.0.0.1:1/v1"], "name it with --model"),
        (["-a", "best:by=luck"], "by must be confidence or reward or value"),
        (["-a", "nobody"], "majority, weighted, best, synthesis, integrate"),
        (["-a", "weighted:luck=1"], "its options are by, contain, same"),
        (["-a", "majority:same=nowhere:at_all"], "nowhere"),
        (["-a", "collections:OrderedDict"], "must be an aggregator"),
        (["--by", "luck"], "verbalised"),
        (["--out", ""], "is empty"),
        (["--out", "no/where/x.jsonl"], "there is no folder"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_there_is(folder: Path, options: list[str], words: str) -> None:
    done = trunkline(folder, "answers", "a.run", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_endpoint_that_serves_nobody_ends_the_command(folder: Path, url: str) -> None:
    done = trunkline(folder, "answers", "a.run", "-a", "synthesis", "-m", "nobody", "--base-url", url)
    assert done.returncode == 3
    assert "nobody" in done.stderr


def test_a_function_of_ones_own_says_which_answers_are_the_same(folder: Path) -> None:
    assert rows(folder, "-a", "majority:same=pickers:alike")["tied"]["votes"] == 2


@pytest.mark.parametrize("kind", [Synthesis, Integrate])
async def test_a_url_is_opened_for_a_decision_and_closed_after_it(url: str, kind: type) -> None:
    messages = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "<answer>a</answer>"})
    tries = [Candidate(id=place, answer=answer, messages=messages) for place, answer in enumerate("aab")]
    found = [await kind(url, "sim-picker", seed=3).decide("Which letter?", tries) for _ in range(2)]
    alike = [msgspec.structs.replace(one, usage=Usage()) for one in found]
    assert alike[0] == alike[1], "an aggregator can be used again; only what the server had cached differs"
    assert found[0].answer in {"a", "b"}
    assert found[0].usage.calls >= (4 if kind is Integrate else 1)
    assert found[0].usage.prompt > 0


class Raising:
    """Fails for every question, in a way that is no model's."""

    async def decide(self, question: str, candidates: list[Candidate]) -> Decision:
        raise KeyError("\x1b[2J")


class Plain:
    """Is no coroutine."""

    def decide(self, question: str, candidates: list[Candidate]) -> Decision:
        return Decision(answer="a")


class Loud:
    """Says what nobody should print."""

    async def decide(self, question: str, candidates: list[Candidate]) -> Decision:
        return Decision(answer="0.5", why="\x1b[2J\nno", fallback=True)


def test_an_aggregator_of_ones_own_that_fails_is_no_traceback(folder: Path, tmp_path: Path) -> None:
    done = trunkline(folder, "answers", "a.run", "-a", f"{__name__}:Raising")
    assert done.returncode == 1
    assert "sure    -         0/0  failed: KeyError: '\\x1b[2J'" in done.stdout
    done = trunkline(folder, "answers", "a.run", "-a", f"{__name__}:Raising", "--out", tmp_path / "a.jsonl")
    assert "failed    5 tasks: KeyError" in done.stdout, "also where no table says so"
    done = trunkline(folder, "answers", "a.run", "-a", f"{__name__}:Plain")
    assert (done.returncode, "Plain.decide must be a coroutine function" in done.stderr) == (2, True)
    done = trunkline(folder, "answers", "a.run", "-a", f"{__name__}:Loud")
    assert (done.returncode, "fallback  5 tasks: \\x1b[2J\\nno" in done.stdout) == (0, True)
    assert "\x1b" not in done.stdout


async def test_an_answer_is_compared_with_accepted_ones_as_votes_are_counted() -> None:
    tree = grove([Try(["0.5"]), Try(["1/2"]), Try(["0.5"])], accepted="1/2")
    (found,) = await answers_of([tree], Majority(), "logprob")
    assert (found.answer, found.votes, found.correct) == ("0.5", 3, True)


class Failing:
    """Fails for some questions, and tells how many it decides at once."""

    def __init__(self) -> None:
        self.flying = self.most = 0

    async def decide(self, question: str, candidates: list[Candidate]) -> Decision:
        self.flying += 1
        self.most = max(self.most, self.flying)
        await asyncio.sleep(0)
        self.flying -= 1
        if question == "sure":
            raise LLMError("no\nway")
        return await Majority().decide(question, candidates)


async def test_an_aggregator_that_fails_costs_one_task_its_answer(folder: Path) -> None:
    deciding = Failing()
    with RunReader.open(folder / "a.run") as reader:
        found = await answers_of(reader.trees(), deciding, "logprob")
    assert [one.task for one in found] == list(SAID)
    assert [one.failed for one in found] == [False, False, True, False, False]
    assert [one.row()["failed"] for one in found] == [False, False, True, False, False]
    assert (found[2].answer, found[2].correct, found[2].decision.why) == (None, None, "no\\nway")
    assert deciding.most == 5
