"""Teams as a loop over whole batches plays them: masks, eager contexts, and fillers in rows that are not active.

It shares no code with the library: what it is held against must not be what it is made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

CHINESE = re.compile("[\u4e00-\u9fff]")
FILLERS = "{(question|context|step|history)}"


class Row(NamedTuple):
    """One call of an agent in one row of a batch."""

    role: str
    step: int
    active: bool
    valid: bool
    prompt: str
    text: str


Script = Callable[[str], str]
Reads = Callable[[str], tuple[str, bool]]


class Batch:
    """A batch of questions, whose agents are called for all rows at once.

    Args:
        prompts: The prompt of each role.
        questions: One for each row.
        script: What is replied to a prompt.
    """

    def __init__(self, prompts: Mapping[str, str], questions: list[str], script: Script) -> None:
        self.prompts = prompts
        self.questions = questions
        self.script = script
        self.size = len(questions)
        self.contexts = [""] * self.size
        self.rows: list[list[Row]] = [[] for _ in questions]

    def call(self, role: str, mask: list[bool], step: int, reads: Reads, told: list[str]) -> list[str]:
        """Call an agent; a row that is not active gets what the first active one said."""
        prompts = [
            re.sub(
                FILLERS,
                lambda slot, row=row: {
                    "question": self.questions[row],
                    "context": self.contexts[row],
                    "step": str(step),
                    "history": told[row],
                }[slot[1]],
                self.prompts[role],
            )
            for row in range(self.size)
        ]
        replies = {row: self.script(prompts[row]) for row in range(self.size) if mask[row]}
        filler = next(iter(replies.values()))
        read = [reads(replies.get(row, filler)) for row in range(self.size)]
        for row in range(self.size):
            if mask[row]:
                text, valid = read[row]
                self.contexts[row] = self.contexts[row] + f'\nThe output of "{role}": {text}\n'
                self.rows[row].append(Row(role, step, True, valid, prompts[row], text))
        return [text for text, _ in read]


def tagged(name: str, *, whole: bool = False, thinks: bool = False) -> Reads:
    """Read what stands in a tag, as a block or with the whole reply around it."""

    def read(reply: str) -> tuple[str, bool]:
        before, opened, _ = reply.partition(f"<{name}>")
        until, closed, _ = reply.partition(f"</{name}>")
        if not opened or not closed:
            return (reply if whole else ""), False
        inner = reply[len(before) + len(opened) : len(until)].strip()
        text = before + opened + inner + reply[len(until) :] if whole else f"<{name}>{inner}</{name}>"
        thought = re.findall("</?think>", reply) == ["<think>", "</think>"]
        return text, not CHINESE.search(reply) and (thought or not thinks)

    return read


def boxed(reply: str) -> tuple[str, bool]:
    """Read a solution."""
    if r"\boxed" not in reply:
        return reply, False
    rest = reply.rsplit(r"\boxed", 1)[1]
    if not rest.startswith("{"):
        return reply, False
    depth = 0
    for character in rest:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return reply, True
    return reply, False


def play_math(batch: Batch, rounds: int = 3) -> list[str]:
    """Play the solver and the verifier; return the last solution of each row."""
    told = [""] * batch.size
    approved = [False] * batch.size
    solutions = [""] * batch.size
    for number in range(rounds):
        due = [not one for one in approved]
        said = batch.call("solver", due, 1, boxed, told)
        solutions = [new if goes else old for new, old, goes in zip(said, solutions, due, strict=True)]
        if number == rounds - 1:
            break
        verdicts = batch.call("verifier", due, 1, tagged("verify", whole=True), told)
        for row, verdict in enumerate(verdicts):
            if due[row]:
                approve, reject = "<verify>approve</verify>" in verdict, "<verify>reject</verify>" in verdict
                approved[row] = approve or not reject
        if all(approved):
            break
    return solutions


def play_search(batch: Batch, engine: Script, steps: int = 4, history: int = 2) -> list[str]:
    """Play the router, the searcher and the answerer in a world that can be searched; return the answers."""
    done = [False] * batch.size
    answers = [""] * batch.size
    past: list[list[tuple[str, str]]] = [[] for _ in range(batch.size)]
    for step in range(1, steps + 1):
        batch.contexts = [""] * batch.size
        told = [remembered(one, history) for one in past]
        active = [not one for one in done]
        verdicts = batch.call("verifier", active, step, tagged("verify", whole=True), told)
        lowered = [verdict.lower() for verdict in verdicts]
        yes = ["<verify>yes</verify>" in one or "<verify>no</verify>" not in one for one in lowered]
        searching = [goes and not enough for goes, enough in zip(active, yes, strict=True)]
        answering = [goes and enough for goes, enough in zip(active, yes, strict=True)]
        actions = [""] * batch.size
        if any(searching) and step < steps:
            queries = batch.call("searcher", searching, step, tagged("search", thinks=True), told)
            actions = [new if goes else old for new, old, goes in zip(queries, actions, searching, strict=True)]
        if any(answering):
            said = batch.call("answerer", answering, step, tagged("answer", thinks=True), told)
            actions = [new if goes else old for new, old, goes in zip(said, actions, answering, strict=True)]
        for row, action in enumerate(actions):
            found = ""
            if done[row]:
                continue
            if "<answer>" in action and "</answer>" in action:
                done[row] = True
                answers[row] = (re.findall("<answer>(.*?)</answer>", action, re.DOTALL) or [""])[-1].strip()
            elif query := re.search("<search>(.*?)</search>", action, re.DOTALL):
                found = engine(query[1].strip())
                found = f"<information>{found}</information>" if found else ""
            past[row].append((action, found))
        if all(done):
            break
    return answers


def remembered(past: list[tuple[str, str]], history: int) -> str:
    """What a row is told of its steps so far."""
    if not past or history == 0:
        return ""
    lines = [f"Step {number}:{action} {found}\n" for number, (action, found) in enumerate(past, 1)]
    return f"\nSteps taken so far: {len(past)}. The latest:\n" + "\n".join(lines[-history:])
