"""Replies of every kind that teams must cope with, and the rows that a team's trees hold."""

from __future__ import annotations

import json
from random import Random
from typing import NamedTuple

from team_reference import Row, Script

from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.batch.completion import Prompt
from trunkline.rollout.programs.replay import Journal
from trunkline.runner.result import Run
from trunkline.runner.run import run
from trunkline.team.team import Team
from trunkline.tools.tool import tool
from trunkline.tree.views import Tree
from trunkline.types import Task

SOLUTIONS = [
    r"So \boxed{%d}.",
    r"First \boxed{1}, then \boxed{\frac{%d}{2}}",
    r"\boxed{%d} and \boxed {2}",
    r"\boxed{%d",
    "It is %d.",
    r"是 \boxed{%d} {context}",
]
APPROVALS = ["Fine. <verify> approve </verify>", "<verify>approve</verify> or <verify>reject</verify>", "Yes %d"]
APPROVALS += ["<verify>REJECT</verify>", "</verify> odd <verify>", "好 <verify>approve</verify>"]
REJECTIONS = ["Step %d is wrong. <verify>\nreject </verify>", "<verify>reject</verify>"]
ENOUGH = ["<verify>yes</verify>", "<verify> yes </verify>", "Hm %d", "<VERIFY>YES</VERIFY>", "<verify>好</verify>"]
MISSING = ["More on %d. <verify>no</verify>", "<Verify>No</Verify>", "<verify>\nno\n</verify>"]
QUERIES = [
    "<think>What of %d?</think><search> it {step} </search>",
    "<search>%d</search>",
    "no query %d",
    "<think>a</think><think>b</think><search>%d</search>",
    "</search><think>x</think><search>",
    "<think>y</think><search>nothing</search>",
    "<think>z</think><search>q <answer>%d</answer></search>",
]
ANSWERS = [
    "<think>So.</think><answer> %d </answer>",
    "<answer>%d</answer> <answer>2</answer>",
    "</think><think><answer>%d",
    "<think>是</think><answer>%d</answer>",
    "I say %d",
]


def scripted(salt: object, share: float) -> Script:
    """Return a script whose verifiers say yes that often; it says the same to the same prompt."""

    def reply(prompt: str) -> str:
        chance = Random(f"{salt} {prompt}")
        good = chance.random() < share
        if "You are the solver" in prompt:
            pool = SOLUTIONS
        elif "You are the searcher" in prompt:
            pool = QUERIES
        elif "You are the answerer" in prompt:
            pool = ANSWERS
        elif "approve</verify>" in prompt.rpartition("You are the verifier")[2]:
            pool = APPROVALS if good else REJECTIONS
        else:
            pool = ENOUGH if good else MISSING
        return chance.choice(pool).replace("%d", str(chance.randrange(100)))

    return reply


def found(query: str) -> str:
    """What the search engine of these tests finds."""
    return "" if query == "nothing" else f"pages on {query}"


@tool
def search(query: list[str]) -> str:
    """Search."""
    return found(*query)


def questions(count: int) -> list[str]:
    """Questions, among them some that look like parts of templates."""
    odd = ("", " {context}", " {{question}}", " \\frac{a}{b}", " \u2028 \ud7ff 是")
    return [f"What is {number}?{odd[number % len(odd)]}" for number in range(count)]


def play(team: Team, asked: list[str], script: Script) -> Run:
    """Run a team over some questions."""
    tasks = [Task.ask(question, id=str(number)) for number, question in enumerate(asked)]
    return run(team, tasks, llm=batches(script), seed=5)


def batches(script: Script) -> BatchLLM:
    """Return an engine that answers by a script."""

    def generate(prompts: list[Prompt]) -> list[str]:
        return [script(prompt.messages[-1]["content"]) for prompt in prompts]

    return BatchLLM(generate)


class PlayedReplies(NamedTuple):
    """One rollout whose replies were given in their order.

    Attributes:
        rows: Its rows.
        answer: Its answer.
        tree: Its tree.
    """

    rows: list[Row]
    answer: str | None
    tree: Tree

    @property
    def roles(self) -> list[str]:
        """Who was asked."""
        return [row.role for row in self.rows]


def play_replies(team: Team, *replies: str, question: str = "What?") -> PlayedReplies:
    """Play one rollout; each request gets the next reply, and all are needed."""
    left = list(replies)
    (tree,) = play(team, [question], lambda _prompt: left.pop(0))
    facts = tree.core.rollout(0)
    assert (facts.termination, facts.error, left) == ("answer", None, [])
    return PlayedReplies(rows_of(team, tree), facts.answer, tree)


def trees(made: Run) -> list[Tree]:
    """Return the trees of a run in the order of its tasks."""
    return sorted(made, key=lambda tree: int(tree.task.id))


def rows_of(team: Team, tree: Tree) -> list[Row]:
    """Return the rows of a tree's first rollout, as they are on record."""
    core = tree.core
    rows = []
    for record in Journal(core).of(0):
        if record.kind != "ask":
            continue
        _, failure, (active, valid, step, penalty) = record.data
        (node,) = record.nodes
        context = core.node(node).context
        assert failure is None
        assert context is not None
        assert penalty == team.members[record.key].role.penalty
        prompt = json.loads(core.request_context(context, b"[", b"]"))[-1]["content"]
        text = team.members[record.key].read(json.loads(core.message(node))["content"], None).text
        rows.append(Row(record.key, step, active, valid, prompt, text))
    return rows


def answers(made: Run) -> list[str | None]:
    """Return the answer of each task's first rollout."""
    return [tree.core.rollout(0).answer for tree in trees(made)]
