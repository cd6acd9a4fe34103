"""Trees that end before their strategy is done: enough, settled, deadlines; four words for four things."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted import Say, Scripted, look
from spending import Clerk, spend

from trunkline import _core
from trunkline.agent import Agent, CompiledAgent
from trunkline.errors import ConfigError
from trunkline.llm.types import Reply, Request
from trunkline.protocol.messages import Batch
from trunkline.rollout.budget import Budget
from trunkline.rollout.sampling.completions import CompletionClient
from trunkline.rollout.tree_runner import TreeRunner, TreeSettings
from trunkline.scoring.rewards import exact_match
from trunkline.strategies.base import Fork
from trunkline.strategies.chain import Chain
from trunkline.strategies.stopping import Stopping
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tree.views import Tree
from trunkline.types import Task, Termination
from trunkline.worker.outbox import Outbox, TreeSink

ANSWER, CENSORED = Termination.ANSWER, Termination.CENSORED


def slow(*draws: int) -> Clerk:
    """A clerk that never answers those draws; seeds of a fork follow one another."""
    first: list[int] = []

    def ticks(seed: int) -> int | None:
        first.append(seed)
        return None if seed - min(first) in draws else 0

    return Clerk(ticks=ticks, answer=lambda seed: (0, "yes"))


def ends(tree) -> list[str | None]:
    return [rollout.termination for rollout in tree.rollouts]


async def test_once_enough_are_done_the_tail_is_cut_and_its_requests_are_given_up():
    clerk = slow(3, 6)
    tree, session, _ = await spend(Chain(8), clerk, stopping=Stopping(enough=6), reward=exact_match)
    assert ends(tree) == [ANSWER, ANSWER, ANSWER, CENSORED, ANSWER, ANSWER, CENSORED, ANSWER]
    assert [rollout.error.message for rollout in tree.rollouts if rollout.error] == ["enough: 6 of 8"] * 2
    assert session.ending == ("enough", "enough: 6 of 8", 0)
    assert clerk.given_up == 2
    assert tree.reward == 1.0, "what was cut is not scored 0"


async def test_a_tail_that_is_kept_goes_on_growing_in_the_file():
    tree, session, _ = await spend(Chain(8), slow(0, 7), stopping=Stopping(enough=6, cut_tail="keep"))
    assert ends(tree) == [None, *[ANSWER] * 6, None]
    assert tree.core.growing == [0, 7]
    assert session.ending.word == "enough"


async def test_rollouts_that_failed_are_not_enough():
    clerk = slow(3)
    choice = clerk._choice

    def broken(turn: int, seed: int, draw: int) -> dict[str, object]:
        made = choice(turn, seed, draw)
        clerk.asked_seeds = [*getattr(clerk, "asked_seeds", []), seed]
        return made | {"finish_reason": "error" if len(clerk.asked_seeds) <= 2 else "stop"}

    clerk._choice = broken
    tree, _session, _ = await spend(Chain(6), clerk, stopping=Stopping(enough=3))
    assert ends(tree) == [Termination.LLM_ERROR, Termination.LLM_ERROR, ANSWER, CENSORED, ANSWER, ANSWER]


async def test_enough_counts_over_all_rounds_and_opens_no_further_one():
    # Two chains, then two forks of each: enough after the first of the second round ends it; all of a round are open.
    strategy = TreeGRPO(trees=2, forks=2, rounds=3)
    tree, session, _ = await spend(strategy, Clerk(), stopping=Stopping(enough=2))
    assert ends(tree) == [ANSWER, ANSWER]
    assert session.ending.why == "enough: 2 of 14"


async def test_a_group_that_has_enough_when_it_is_complete_is_finished():
    _tree, session, _ = await spend(Chain(4), Clerk(), stopping=Stopping(enough=4))
    assert session.ending == ("finished", None, 0)


async def test_siblings_in_one_request_are_cut_together():
    clerk = Clerk(siblings=True, ticks=lambda seed: 2, answer=lambda seed: (1 if seed % 2 else 0, "yes"))
    tree, session, _ = await spend(Chain(6), clerk, stopping=Stopping(enough=3))
    assert session.ending.word == "enough"
    assert ends(tree).count(ANSWER) == 3


class Patient:
    """Rollouts wait after each step; some are cut while they wait."""

    def rollouts(self) -> int:
        return 3

    def start(self, view):
        yield Fork(n=3)

    def stepped(self, view):
        return []


async def test_rollouts_that_wait_between_two_steps_are_cut_where_they_wait():
    first: list[int] = []

    def answer(seed: int) -> tuple[int, str]:
        first.append(seed)
        return (0 if seed == first[0] else 3, "yes")

    tree, _session, _ = await spend(Patient(), Clerk(answer=answer), stopping=Stopping(enough=1))
    assert ends(tree) == [ANSWER, CENSORED, CENSORED]


def votes(*answers: str):
    """A clerk whose rollouts answer at once, in the order in which they were opened."""
    given = iter(answers)
    seen: dict[int, str] = {}

    def answer(seed: int) -> tuple[int, str]:
        if seed not in seen:
            seen[seed] = next(given)
        return 0, seen[seed]

    return Clerk(answer=answer)


@pytest.mark.parametrize(
    ("answers", "opened"),
    [
        # 5 of 8: the others can bring 3 at most.
        ("aaaaaaaa", 5),
        # 4 a, 1 b, 3 left: b could have 4, a tie. 5 a, 1 b, 2 left: b 3.
        ("abaaaaaa", 6),
        # A tie is never settled while a try remains.
        ("abababab", 8),
        # 4 a, 3 b, 1 left could be a tie; after the last there is nothing left to save.
        ("aaabbbaa", 8),
        # Spelling does not count.
        (("The Yes", "yes", "YES!", "yes", "yes", "no", "no", "no"), 5),
    ],
)
async def test_a_task_is_settled_when_its_answer_can_no_longer_change(answers, opened: int):
    tree, session, _ = await spend(Chain(8, wave=1), votes(*answers), stopping=Stopping(stop_when="answer"))
    assert len(tree.rollouts) == opened
    assert session.ending.word == ("settled" if opened < 8 else "finished")
    if opened == 5:
        assert session.ending.why == "settled: the leading answer is 5 votes ahead with 3 tries left"


async def test_a_settled_task_has_the_answer_that_all_its_tries_would_have_given():
    settled, _, _ = await spend(Chain(8, wave=1), votes(*"bbabbaaa"), stopping=Stopping(stop_when="answer"))
    whole, _, _ = await spend(Chain(8), votes(*"bbabbaaa"))
    assert settled.answer == whole.answer or len(settled.rollouts) == 8


async def test_a_reward_that_is_good_enough_settles_a_task_between_rounds():
    clerk = votes("no", "no", "no", "yes", "no", "no")
    tree, session, _ = await spend(Chain(6, wave=2), clerk, stopping=Stopping(stop_when=1.0), reward=exact_match)
    assert len(tree.rollouts) == 4
    assert session.ending == ("settled", "settled: rollout 3 has a reward of at least 1", 0)


async def test_waiting_rollouts_of_a_settled_task_are_stopped_with_that_reason():
    first: list[int] = []

    def answer(seed: int) -> tuple[int, str]:
        first.append(seed)
        return (0 if seed == first[0] else 3, "yes")

    stopping = Stopping(stop_when=1.0)
    tree, session, _ = await spend(Patient(), Clerk(answer=answer), stopping=stopping, reward=exact_match)
    assert ends(tree) == [ANSWER, CENSORED, CENSORED]
    assert tree.rollouts[2].error.message.startswith("settled: rollout 0")
    assert session.ending.word == "settled"


async def test_waves_make_the_tree_that_chains_at_once_make():
    at_once, _, _ = await spend(Chain(7), Clerk())
    waves, _, _ = await spend(Chain(7, wave=3), Clerk())
    assert at_once.digest() == waves.digest()


async def test_a_task_whose_time_is_over_is_cut():
    clerk = Clerk(ticks=lambda seed: None)
    tree, session, _ = await spend(Chain(3), clerk, Budget(seconds=0.1))
    assert ends(tree) == [CENSORED] * 3
    assert session.ending == ("deadline", "deadline: 0.1 s for the task", 0)
    assert clerk.given_up == 3


async def test_a_cut_before_the_first_step_leaves_nothing_behind():
    sessions = []

    class Early:
        def rollouts(self) -> int:
            return 2

        def start(self, view):
            asyncio.get_running_loop().call_soon(lambda: sessions[0].cut("deadline", "deadline: now"))
            yield Fork(n=2)

    tree, session, _ = await spend(Early(), Clerk(), made=sessions.append)
    assert ends(tree) == [CENSORED] * 2
    assert session.ending.word == "deadline"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"enough": 0}, "enough must be a whole number of at least 1"),
        ({"cut_tail": "drop", "enough": 1}, "cut_tail must be censor or keep, not 'drop'"),
        ({"cut_tail": "keep"}, "cut_tail=keep says what becomes of rollouts that enough= cuts: set enough as well"),
        ({"stop_when": "soon"}, "stop_when must be answer or a reward, not 'soon'"),
        ({"stop_when": float("nan")}, "stop_when must be a number"),
    ],
)
def test_what_ends_no_tree_is_refused_by_name(fields: dict, text: str):
    with pytest.raises(ConfigError, match=text):
        Stopping(**fields)


def test_what_could_never_come_about_is_refused():
    with pytest.raises(ConfigError, match=r"enough=9 is never reached: Chain plans 8 rollouts a task"):
        Stopping(enough=9).check(Chain(8), scored=True)
    with pytest.raises(ConfigError, match=r"Chain starts its 8 rollouts at once.*Chain\(8, wave=4\)"):
        Stopping(stop_when="answer").check(Chain(8), scored=True)
    with pytest.raises(ConfigError, match="stop_when=1 is a reward, but nothing is scored"):
        Stopping(stop_when=1).check(Chain(8, wave=1), scored=False)
    Stopping(stop_when="answer").check(TreeGRPO(trees=2, forks=1, rounds=2), scored=False)


def test_what_a_value_function_says_settles_nothing():
    core = _core.CoreTree()
    point = core.append(_core.ROOT, _core.PROMPT, b'{"role":"user","content":"?"}')
    rollout = core.open(point, (0, 0), 0)
    core.close(rollout, Termination.CENSORED.value, None, None)
    core.score(rollout, 5.0)
    assert Stopping(stop_when=1.0).is_settled(core, 4) is None


@pytest.mark.parametrize("count", [1, 2])
async def test_a_cut_leaves_for_the_file_while_an_llm_keeps_its_request(count: int):
    asked, kept, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Stubborn:
        siblings = False

        async def complete(self, request: Request) -> Reply:
            if len(json.loads(request.body)["messages"]) == 1:
                return await Scripted(lambda messages, seed: Say("x")).complete(request)
            asked.set()
            try:
                await gate.wait()
            except asyncio.CancelledError:
                kept.set()
                await gate.wait()
                raise

        async def close(self) -> None: ...

    sent: list[Batch] = []
    outbox = Outbox(8, sent.append, pytest.fail)
    tree = Tree(Task.ask("what?", "1", id="q"), _core.CoreTree())
    agent, client = CompiledAgent(Agent(model="m", tools=[look])), CompletionClient(Stubborn())
    runner = TreeRunner(tree, TreeSettings(agent, Chain(count), exact_match, 11, client), TreeSink(outbox, 0, tree))
    runner.task = asyncio.create_task(runner.run(lambda runner, problem: None))
    await asked.wait()
    outbox.flush()
    runner.cut("deadline", "the time is over")
    await kept.wait()
    file = _core.CoreTree()
    while not (file.rollouts and all(file.rollout(number).termination for number in range(file.rollouts))):
        await asyncio.sleep(0.01)
        for delta in (delta for batch in sent for delta in batch.deltas):
            file.apply(delta.data)
        sent.clear()
    assert not runner.task.done()
    gate.set()
    await runner.task
