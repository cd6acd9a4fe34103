"""The example of a learning curve: its task, engine and updates, resuming, and the analysis of made-up data."""

from __future__ import annotations

import asyncio
import json
import math
import random
import urllib.error
import urllib.request
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
    def scripted(self: policy.Engine, prompts: list[tl.Prompt]) -> list[tl.Completion]:
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
        ):
            status, found = ask(body)
            assert status == 400, body
            assert said in found["error"]["message"], body


def test_a_server_whose_engine_fails_says_so_and_goes_on(model: policy.Policy, monkeypatch: pytest.MonkeyPatch):
    engine = policy.Engine(model)
    generate, fail = engine.generate, iter([True, False])

    def failing(prompts: list[tl.Prompt]) -> Any:
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


def test_held_out_questions_are_apart():
    training = {one.text for seed in range(20) for one in task.questions(str(seed), 50)}
    held_out = {one.text for one in task.questions("evaluation study", 300, held_out=True)}
    assert len(held_out) > 250
    assert not training & held_out


def test_a_draw_depends_on_its_seed_alone(model: policy.Policy):
    prompts = [
        [task.ID[word] for word in f"<question> {text} <agent>".split()] for text in ("7 + 2 * 3", "5 - k 40 + 9 * 2")
    ]

    def asked(ids: list[int], n: int, seed: int) -> tl.Prompt:
        fields = {"prompt": ids, "max_tokens": 6, "temperature": 1.0}
        return tl.Prompt(json.dumps(fields).encode(), n=n, seed=seed)

    engine = policy.Engine(model)
    together = engine.generate([asked(prompts[0], 3, 11), asked(prompts[1], 1, 12), asked(prompts[0], 1, 40)])
    assert engine.counts.prompt == 2 * len(prompts[0]) + len(prompts[1])
    assert engine.counts.computed == len(prompts[0]) + len(prompts[1])
    assert engine.counts.draws == 5
    alone = [engine.generate([asked(prompts[0], 1, 11 + draw)])[0] for draw in range(3)]
    assert [one.token_ids for one in together[0]] == [one.token_ids for one in alone]
    # The log-probabilities are those of a forward pass without a cache.
    for found, ids in ((together[1], prompts[1]), (together[2], prompts[0])):
        whole = torch.tensor([[*ids, *found.token_ids]])
        with torch.no_grad():
            logits = model(whole, torch.arange(whole.shape[1])[None], policy.causal(whole.shape[1]))[0]
        expected = logits.log_softmax(-1)[len(ids) - 1 : -1].gather(1, whole[0, len(ids) :, None])[:, 0]
        assert torch.allclose(torch.tensor(found.logprobs), expected, atol=1e-5)


def test_arms_of_a_seed_are_asked_the_same_questions(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, list[list[str]]] = {}
    run = train.Rollouts.run

    def watched(self: Any, questions: Sequence[task.Question], *arguments: Any) -> Any:
        asked.setdefault(arm, []).append([one.text for one in questions])
        return run(self, questions, *arguments)

    monkeypatch.setattr(train.Rollouts, "run", watched)
    arms = train.arms(8, (2, 2, 1))
    for arm in ("chains", "tree_grpo", "treerl", "tree_outcome", "quarter_chains", "quarter_trees", "chains_ladder"):
        fresh = policy.load(0, study.imitations(folder, 30))
        before = [one.clone() for one in fresh.parameters()]
        lines = train.learn(arms[arm], fresh, str(folder / "tokenizer"), seed=3, rate=1e-3, updates=2)
        assert [line["update"] for line in lines] == [1, 2]
        assert 0 < lines[0]["generated"] < lines[1]["generated"]
        assert all(math.isfinite(line["loss"]) and line["forwarded"] >= line["trained"] > 0 for line in lines)
        if any(line["mixed"] for line in lines):
            assert any(not torch.equal(one, two) for one, two in zip(before, fresh.parameters(), strict=True))
    assert all(one == asked["chains"] for one in asked.values())
    assert asked["chains"][0] != asked["chains"][1]
    assert train.training_questions(3, 0) != train.training_questions(4, 0)


def test_flat_and_packed_training_agree(folder: Path, model: policy.Policy, monkeypatch: pytest.MonkeyPatch):
    # An untrained policy is hardly ever right.
    monkeypatch.setattr(train, "right", lambda trajectory: float(number(json.dumps(trajectory.messages)) % 2))
    recorded = flat_and_packed.record(model, str(folder / "tokenizer"), steps=3, strategy=tl.TreeGRPO(2, 2, 1))
    exact = flat_and_packed.compare(model, recorded, torch.float64, rate=3e-3)
    assert max(exact[:3]) < 1e-8
    assert exact.packed_tokens < exact.flat_tokens
    rough = flat_and_packed.compare(model, recorded, torch.float32, rate=3e-3)
    print(f"\n64 bits: {exact}\n32 bits: {rough}")
    assert exact.gradient < rough.gradient


def made_up(cell: study.Cell, folder: str) -> dict[str, Any]:
    return {
        "cell": cell._asdict(),
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
    results.write_text("[]\n")
    with pytest.raises(SystemExit, match="line 1 is no result"):
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
    assert c[-1].startswith("quarter_trees - quarter_chains: +0.1") or c[-2].endswith("trees made more.")
    assert any("2 contrasts): chains_avoid - chains, greedy." in line for line in d)
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


def test_a_cell_that_fails_does_not_take_the_others_with_it():
    found = study.in_processes([partial(divmod, 1, one) for one in (1, 2, 0)], 1)
    assert [next(found), next(found)] == [(1, 0), (0, 1)]
    with pytest.raises(ZeroDivisionError):
        next(found)
