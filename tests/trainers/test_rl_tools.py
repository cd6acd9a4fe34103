"""The example of a learning curve: its task, engine and updates, resuming, and the analysis of made-up data."""

from __future__ import annotations

import asyncio
import json
import math
import random
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from frameworks import MARKS, load
from hypothesis import given
from hypothesis import strategies as st
from playing import number

import trunkline as tl

(torch,) = load("torch")
from rl_tools import analyse, flat_and_packed, policy, server, study, task, train  # noqa: E402
from trunkline.llm.token_ids.renderers import LocalRenderer  # noqa: E402

pytestmark = MARKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a policy that has imitated a little."""
    made = tmp_path_factory.mktemp("rl_tools")
    task.write_tokenizer(made / "tokenizer")
    policy.imitate(0, study.imitations(made, 30), batches=30, size=24, steps=(3,))
    return made


@pytest.fixture
def model(folder: Path) -> policy.Policy:
    return policy.load(0, study.imitations(folder, 30))


QUESTIONS = st.builds(lambda seed, steps: task.question(random.Random(seed), steps), st.integers(), st.integers(3, 10))


@given(QUESTIONS, st.integers())
def test_a_teacher_without_errors_is_right_and_takes_as_many_steps_as_were_asked_for(asked: task.Question, seed: int):
    trace = task.Teacher(0, least=0.0, most=0.0).trace(asked, random.Random(seed))
    hidden = asked.text.count(" ") - 2 * len(asked.rest)
    assert len(trace) == 2 * (len(asked.rest) + hidden) + 1
    assert trace[-1] == f"answer {asked.answer}"
    said = task.Words()
    for turn, result in zip(trace[::2], trace[1::2], strict=False):
        (call,) = said.parse(tl_choice(turn), []).calls
        tool = {"calc": task.calc, "look": task.look}[call.name]
        assert asyncio.run(tool(**json.loads(call.arguments))) == result


def tl_choice(text: str) -> Any:
    return type("Choice", (), {"content": text})()


@given(st.text() | st.lists(st.sampled_from(task.WORDS), max_size=6).map(" ".join))
def test_any_text_is_a_call_or_an_answer(text: str):
    parsed = task.Words().parse(tl_choice(text), [])
    assert bool(parsed.calls) != (parsed.answer is not None)


@given(QUESTIONS, st.integers())
def test_a_trace_has_the_tokens_that_the_chat_template_writes(folder: Path, asked: task.Question, seed: int):
    trace = task.Teacher(1).trace(asked, random.Random(seed))
    roles = ["assistant", "user"]
    messages = [{"role": "user", "content": asked.text}]
    messages += [{"role": roles[place % 2], "content": text} for place, text in enumerate(trace)]
    rendered = asyncio.run(LocalRenderer(folder / "tokenizer").render(messages))
    written = [token for token, _ in task.transcript(asked, trace)]
    assert [*written, task.ID["<agent>"]] == rendered


@given(QUESTIONS, st.integers())
def test_a_trace_told_to_begin_differently_does_where_the_teacher_can(asked: task.Question, seed: int):
    dice, teacher = random.Random(seed), task.Teacher(1, least=0.3, most=0.7)
    begun = [teacher.trace(asked, dice)[0]]
    said = task.avoided(begun)
    written = [token for token, own in task.transcript(asked, teacher.different(asked, begun, dice), said) if not own]
    assert task.ID["<unk>"] not in written
    assert [task.ID["<result>"], *task.ids(said)] == written[1 + len(asked.text.split()) :][: 1 + len(task.ids(said))]


def test_chains_are_told_what_the_imitation_was_told(
    folder: Path, model: policy.Policy, monkeypatch: pytest.MonkeyPatch
):
    def scripted(self: policy.Engine, prompts: list[tl.llms.Prompt]) -> list[tl.llms.Completion]:
        seen.extend(prompt.token_ids for prompt in prompts)
        texts = [task.ids(turns[sum(i == task.ID["<agent>"] for i in prompt.token_ids)].pop()) for prompt in prompts]
        return [policy.completion([*text, task.ID[task.END]], [-1.0] * 9) for text in texts]

    turns = {1: ["answer 3", "look k 47", "calc 7 + 5"], 2: ["answer 3"] * 3}
    seen: list[list[int]] = []
    monkeypatch.setattr(policy.Engine, "generate", scripted)
    with train.Rollouts(model, str(folder / "tokenizer")) as rollouts:
        rollouts.run([task.Question("7", (("+", "5"), ("-", "k 47")))], tl.Chain(3, avoid=True), 0)
    for begun in (["calc 7 + 5"], ["calc 7 + 5", "look k 47"]):
        said = task.avoided(begun)
        assert task.ids(f"<question> 7 + 5 - k 47 <result> {said} <agent>") in seen
        assert task.ID["<unk>"] not in task.ids(said)


def test_a_server_answers_as_its_engine_does(folder: Path, model: policy.Policy):
    asked = train.training_questions(3, 0)
    trees = {}
    for http in (False, True):
        with train.Rollouts(model, str(folder / "tokenizer"), http=http) as rollouts:
            trees[http] = rollouts.run(asked, tl.Chain(4), 5)
    for one, other in zip(*trees.values(), strict=True):
        assert [rollout.answer for rollout in one.rollouts] == [rollout.answer for rollout in other.rollouts]
        assert all(tree.tokens.exact for tree in trees[True])


def test_a_server_says_what_is_wrong_with_a_request(model: policy.Policy):
    def ask(body: bytes) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    with server.Server(policy.Engine(model)).serving() as url:
        status, found = ask(b'{"prompt": "<question> 7 + 5 <agent>", "n": 2, "seed": 1, "max_tokens": 4}')
        assert (status, found["usage"]["prompt_tokens"], len(found["choices"])) == (200, 5, 2)
        for choice in found["choices"]:
            ids = choice["token_ids"]
            assert 1 <= len(ids) == len(choice["logprobs"]["token_logprobs"]) <= 4
            assert choice["finish_reason"] == ("stop" if ids[-1] == task.ID[task.END] else "length")
        for body, said in (
            (b"{", "truncated"),
            (b"{}", "prompt"),
            (b'{"prompt": []}', "prompt"),
            (b'{"prompt": [5000]}', "prompt"),
            (b'{"prompt": "7", "n": 0}', "n"),
            (b'{"prompt": "7", "stream": true}', "stream"),
            (b'{"prompt": "7", "max_tokens": 1000000}', "max_tokens"),
            (b'{"prompt": "' + b"7 " * 5000 + b'"}', "5000 tokens"),
            (b'{"prompt": "7", "x": ' + b"[" * 100000, "recursion"),
            (b'{"prompt": "\xff"}', "utf-8"),
        ):
            status, found = ask(body)
            assert status == 400, body
            assert said in found["error"]["message"], body


def test_a_server_whose_engine_fails_says_so_and_goes_on(model: policy.Policy, monkeypatch: pytest.MonkeyPatch):
    engine = policy.Engine(model)
    generate, fail = engine.generate, iter([True, False])

    def failing(prompts: list[tl.llms.Prompt]) -> Any:
        if next(fail):
            raise RuntimeError("no memory")
        return generate(prompts)

    monkeypatch.setattr(engine, "generate", failing)
    with server.Server(engine).serving() as url:
        body = b'{"prompt": "<question> 7 + 5 <agent>"}'
        request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError, match="500"):
            urllib.request.urlopen(request, timeout=30)
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("held_out", [True, False])
def test_held_out_questions_are_apart(held_out: bool):
    """Which kind a question is of, its text alone decides."""
    asked = {one.text for seed in range(5) for one in task.questions(str(seed), 200, held_out=held_out)}
    assert len(asked) > 900
    assert {zlib.crc32(text.encode()) % 10 == 0 for text in asked} == {held_out}


def by_chance(trajectory: tl.Trajectory) -> float:
    """Reward some, by what was said: a policy that has learnt next to nothing is hardly ever right."""
    return float(number(json.dumps(trajectory.messages)) % 2)


@pytest.mark.parametrize("arm", train.arms(8, (2, 2, 1)))
def test_an_arm_trains(arm: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []
    run = train.Rollouts.run

    def watched(self: Any, questions: Sequence[task.Question], *arguments: Any) -> Any:
        asked.append([one.text for one in questions])
        return run(self, questions, *arguments)

    monkeypatch.setattr(train.Rollouts, "run", watched)
    monkeypatch.setattr(train, "right", by_chance)
    fresh = policy.load(0, study.imitations(folder, 30))
    before = [one.clone() for one in fresh.parameters()]
    lines = train.learn(train.arms(8, (2, 2, 1))[arm], fresh, str(folder / "tokenizer"), seed=3, rate=1e-3, updates=2)
    assert [line["update"] for line in lines] == [1, 2]
    assert 0 < lines[0]["generated"] < lines[1]["generated"]
    assert all(math.isfinite(line["loss"]) and line["forwarded"] >= line["trained"] > 0 for line in lines)
    assert any(line["mixed"] for line in lines)
    assert all(not torch.equal(one, two) for one, two in zip(before, fresh.parameters(), strict=True))
    # Whatever the arm, a seed asks the same.
    assert asked == [[one.text for one in train.training_questions(3, update)] for update in range(2)]
    rollouts = {"quarter_chains": 2, "tree_grpo": 6, "treerl": 6, "tree_outcome": 6, "quarter_trees": 6}
    assert [line["rollouts"] for line in lines] == [8 * rollouts.get(arm, 8)] * 2


def test_arms_differ_as_the_preregistration_says():
    arms = train.arms(8, (2, 5, 1))
    assert {name: arm.estimator for name, arm in arms.items()} == {
        "chains": "verl_grpo",
        "tree_grpo": "tree_grpo",
        "treerl": "treerl_code",
        "tree_outcome": "tree_grpo_inter",
        "quarter_chains": "verl_grpo",
        "quarter_trees": "tree_grpo",
        "chains_avoid": "verl_grpo",
        "chains_ladder": "verl_grpo",
    }
    assert arms["chains"].strategy == tl.Chain(8)
    assert arms["quarter_chains"].strategy == tl.Chain(2)
    assert all(arms[name].strategy == tl.TreeGRPO(2, 5, 1) for name in ("tree_grpo", "treerl", "tree_outcome"))


def test_questions_do_not_repeat_themselves():
    assert train.training_questions(3, 0) != train.training_questions(3, 1)
    assert train.training_questions(3, 0) != train.training_questions(4, 0)


def test_an_update_takes_the_step_of_flat_rows(folder: Path, model: policy.Policy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train, "right", by_chance)
    (trees,) = flat_and_packed.record(model, str(folder / "tokenizer"), steps=1, strategy=tl.TreeGRPO(2, 3, 1))
    flat = policy.load(0, study.imitations(folder, 30))
    loss, _ = flat_and_packed.flat_loss(flat, trees)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(flat.parameters(), 1.0)
    before = [one.clone() for one in model.state_dict().values()]
    told = train.update(model, torch.optim.SGD(model.parameters(), lr=1.0), trees, "tree_grpo")
    taken = [one - other for one, other in zip(before, model.state_dict().values(), strict=True)]
    expected = [one.grad.detach() for one in flat.parameters()]
    largest = max(float(one.abs().max()) for one in expected)
    assert math.isclose(told["loss"], loss.item(), rel_tol=1e-4, abs_tol=1e-6)
    assert max(float((one - two).abs().max()) for one, two in zip(taken, expected, strict=True)) < 1e-4 * largest


def test_a_line_has_what_its_cell_found(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def evaluate(model: Any, tokenizer: str, name: str, *, count: int) -> dict[str, float]:
        looked_at.append((name, count))
        return {"greedy": 0.25, "sampled": 0.5}

    looked_at: list[tuple[str, int]] = []
    monkeypatch.setattr(study, "evaluate", evaluate)
    cell = study.Cell("b", "chains", 0, 0, 1e-3, updates=1, size=4, imitated=30, held_out=7)
    line = json.loads(json.dumps(study.line_of(cell, str(folder))))
    assert looked_at == [("start", 7), ("study", 7)]
    assert (line["before"], line["final"]) == ({"greedy": 0.25, "sampled": 0.5},) * 2
    assert line["code"] == study.code_version()
    assert line["curve"]["rollouts"] == [32]
    looked_at.clear()
    study.line_of(cell._replace(part="example", arm="tree_grpo", tree=(1, 1, 1)), str(folder))
    assert looked_at == [("example", 7)]


def test_flat_and_packed_training_agree(folder: Path, model: policy.Policy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train, "right", by_chance)
    recorded = flat_and_packed.record(model, str(folder / "tokenizer"), steps=3, strategy=tl.TreeGRPO(2, 2, 1))
    exact = flat_and_packed.compare(model, recorded, torch.float64, rate=3e-3)
    assert max(exact[:3]) < 1e-8
    assert exact.packed_tokens < exact.flat_tokens
    rough = flat_and_packed.compare(model, recorded, torch.float32, rate=3e-3)
    print(f"\n64 bits: {exact}\n32 bits: {rough}")
    assert exact.gradient < rough.gradient


def made_up(cell: study.Cell, folder: str) -> dict[str, Any]:
    return {
        "cell": json.loads(json.dumps(cell._asdict())),
        "code": study.code_version(),
        "seconds": 1.0,
        "evaluation_seconds": 1.0,
        "before": {"greedy": 0.2} if cell.arm == "chains" else {},
        "final": {"greedy": 0.5, "sampled": 0.4},
        "curve": {"generated": [10.0, 20.0], "reward": [0.0, 1.0]},
    }


def test_a_study_that_broke_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(study, "prepare", lambda *arguments: None)
    monkeypatch.setattr(study, "in_processes", lambda works, jobs: (work() for work in works))
    wanted = study.example()
    made: list[study.Cell] = []

    def work(cell: study.Cell, folder: str) -> dict[str, Any]:
        made.append(cell)
        if len(made) == 4:
            raise KeyboardInterrupt
        return made_up(cell, folder)

    with pytest.raises(KeyboardInterrupt):
        study.run(wanted, tmp_path, 1, work)
    results = tmp_path / "results.jsonl"
    with results.open("ab") as file:
        file.write(b'{"cell": {"part"')
    study.run(wanted, tmp_path, 1, work)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["cell"]["seed"] for line in lines] == [200, 200, 201, 201, 202, 202, 203, 203]
    assert made == [*wanted[:4], *wanted[3:]]
    study.run(wanted, tmp_path, 1, work)
    assert len(made) == 9
    assert "| seeds | 4 | 4 |" in analyse.report(analyse.read(results))

    results.write_text(json.dumps(lines[0] | {"code": "other"}) + "\n")
    with pytest.raises(SystemExit, match="line 1 is of 'other'"):
        study.run(wanted, tmp_path, 1, work)


def test_seeds_of_the_pilot_are_not_used_again():
    def used(cells: Sequence[study.Cell]) -> tuple[set[int], set[int]]:
        return {cell.seed for cell in cells}, {cell.checkpoint for cell in cells}

    seeds, checkpoints = used(study.study())
    assert (len(seeds), len(checkpoints)) == (12, 3)
    pilot, rates = used(study.budgets()), used(study.rates())
    assert not pilot[0] & rates[0]
    for other, imitated in (pilot, rates, used(study.example()), used(study.quick())):
        assert not other & seeds
        assert not imitated & checkpoints
    assert len({study.key(cell._asdict()) for cell in study.study()}) == len(study.study()) == 12 * 9
    for part, names in analyse.PARTS.items():
        assert {cell.arm for cell in study.study() if cell.part == part} == set(names)


def test_the_analysis_of_known_data():
    # Tables of Student's t: .975 at 11, 2.2010; .95 at 11, 1.7959; .8 at 11, .8755.
    assert analyse.t_quantile(0.975, 11) == pytest.approx(2.200985, abs=1e-6)
    assert analyse.t_quantile(0.95, 11) == pytest.approx(1.795885, abs=1e-6)
    assert analyse.t_quantile(0.8, 11) == pytest.approx(0.875530, abs=1e-6)
    assert analyse.t_below(1.0, 1) == pytest.approx(0.75)
    assert analyse.t_below(-(2.0**0.5), 2) == pytest.approx(0.5 - 0.5 * 0.5**0.5)
    # Differences 1, 2, 3, 4: mean 2.5, deviation 1.29099, error .645497, t 3.87298 with 3 degrees.
    found = analyse.paired({1: 2.0, 2: 4.0, 3: 6.0, 4: 8.0, 9: 0.0}, {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 0.0})
    assert (found.seeds, found.mean) == (4, 2.5)
    assert (found.low, found.high) == pytest.approx((0.445739, 4.554261), abs=1e-5)
    assert found.p == pytest.approx(0.030466, abs=1e-5)
    assert found.least == pytest.approx(2.5 - 2.353363 * 0.645497, abs=1e-5)
    assert found.detectable == pytest.approx((3.182446 + 0.978472) * 0.645497, abs=1e-5)
    assert analyse.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )
    assert analyse.area([10.0, 30.0, 60.0], [0.1, 0.4, 1.0], 40.0) == pytest.approx((1 + 8 + 10) / 40)
    assert analyse.area([10.0, 20.0], [0.0, 1.0], 40.0) == 0.5
    near = {seed: 0.7 + 0.001 * (seed % 2) for seed in range(12)}
    assert analyse.verdict(near, dict.fromkeys(range(12), 0.705)).startswith("not inferior")
    assert analyse.verdict(near, dict.fromkeys(range(12), 0.73)).startswith("not shown")


def made_up_study() -> list[dict[str, Any]]:
    records = [made_up(cell, "") for cell in study.study()]
    for record in records:
        cell = record["cell"]
        better = {"tree_grpo": 0.05, "quarter_chains": -0.1, "chains_avoid": -0.2}.get(cell["arm"], 0.0)
        record["final"] = {"greedy": 0.6 + better + 0.01 * (cell["seed"] % 4), "sampled": 0.5}
        record["final"]["greedy"] += 0.01 * random.Random(f"{cell['arm']} {cell['seed']}").random()
    return records


def test_a_report_of_made_up_results_has_every_part():
    records = made_up_study()
    text = analyse.report(records)
    assert "108 runs" in text
    assert "Not finished" not in text
    b, c, d = (part.splitlines() for part in text.split("## Part")[1:])
    (primary,) = [line for line in b if "| primary |" in line]
    assert primary.startswith("| tree_grpo - chains, greedy (12 seeds) | +0.0")
    assert sum(line.startswith("| ") and " seeds) |" in line for line in b) == 11
    assert "Primary: tree_grpo better." in b
    assert "10 contrasts): tree_grpo - tree_outcome, greedy." in "\n".join(b)
    (imitations,) = [line for line in b if line.startswith("Primary by imitation: 10: +0.0")]
    assert imitations.count("+0.0") == 3
    assert any(line.startswith("quarter_trees: not inferior") for line in c)
    assert any(line.startswith("quarter_chains: not shown") for line in c)
    assert any(line.startswith("quarter_trees - quarter_chains: +0.") and "trees made more." in line for line in c)
    assert any("2 contrasts): chains_avoid - chains, greedy." in line for line in d)
    # The made-up runs end after 20 tokens, in the first part of the budget: half of them at an accuracy of 1.
    assert [line for line in b if line.startswith(("| 0 to", "| 20,000"))] == [
        "| 0 to 20,000 | 0.500 | 0.500 | 0.500 | 0.500 | +0.000 | +0.000 to +0.000 |"
    ]
    drawn = analyse.drawing(analyse.by_arm(records, "b"))
    assert drawn.count("<polyline") == 6 + 4 * 13


def test_a_report_says_what_it_must_not_judge():
    records = made_up_study()
    short = [one for one in records if not (one["cell"]["arm"] == "treerl" and one["cell"]["seed"] > 9)]
    assert "**Not finished**, and not to be judged: without treerl of b (2 seeds)." in analyse.report(short)
    with pytest.raises(SystemExit, match="two results of part b, chains, seed 0"):
        analyse.report([*records, *[one for one in records if one["cell"]["part"] == "b"]])
    for record in records:
        record["before"] = record["before"] and {"greedy": 0.55}
    assert "Not judged: chains rose by +0.0" in analyse.report(records)


RESULTS = Path(study.__file__).parent / "results"


def test_the_committed_report_is_that_of_the_committed_data(tmp_path: Path):
    analyse.main(["--results", str(RESULTS / "study.jsonl"), "--out", str(tmp_path)])
    assert (tmp_path / "report.md").read_text() == (RESULTS / "report.md").read_text()
    for part in "bcd":
        assert (tmp_path / f"curve-{part}.svg").read_text() == (RESULTS / f"curve-{part}.svg").read_text()
    records = analyse.read(RESULTS / "study.jsonl")
    assert {study.key(one["cell"]) for one in records} == {
        study.key(json.loads(json.dumps(cell._asdict()))) for cell in study.study()
    }
    assert "rates | tree_grpo | (2, 5, 1) | 0.0002" in analyse.pilot_table(analyse.read(RESULTS / "pilot.jsonl"))


@pytest.mark.parametrize("line", ["x", "[]", '{"cell": {}}', "", "\xff"])
def test_a_file_of_something_else_is_named(line: str, tmp_path: Path):
    (tmp_path / "results.jsonl").write_bytes(line.encode("latin-1") + b"\n")
    with pytest.raises(SystemExit, match="line 1 is no result"):
        analyse.main(["--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        (study.main, ["--out", "FILE"], "cannot be a folder"),
        (flat_and_packed.main, ["--out", "FILE"], "cannot be a folder"),
        (study.main, ["--questions", "--http"], "leave out --http"),
        (study.main, ["--jobs", "0"], "--jobs must be at least 1"),
        (flat_and_packed.main, ["--steps", "0"], "--steps must be at least 1"),
        (analyse.main, ["--results", "FILE"], "has no results yet"),
    ],
)
def test_wrong_options_are_named(
    main: Any, arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    given = [str(tmp_path / "file") if one == "FILE" else one for one in arguments]
    given += [] if "--out" in given else ["--out", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(given)
    assert said in capsys.readouterr().err


def test_a_cell_that_fails_does_not_take_the_others_with_it():
    found = study.in_processes([partial(divmod, 1, one) for one in (1, 2, 0)], 1)
    assert [next(found), next(found)] == [(1, 0), (0, 1)]
    with pytest.raises(ZeroDivisionError):
        next(found)
