"""The task: sums of 3 to 6 steps with two tools, their questions, a teacher that is often wrong, and the tokenizer.

A question is ``7 + k 47 * 3``, worked out from left to right, modulo 100. ``k 47`` is a hidden operand, which ``look``
tells; ``calc`` does one operation. A turn is ``look k 47``, ``calc 12 * 3`` or ``answer 36``; everything else is a
wrong answer.
"""

from __future__ import annotations

import json
import random
import re
import string
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import trunkline as tl
from trunkline.llm.dialects.base import Definition
from trunkline.llm.types import ReplyChoice, ToolCall
from trunkline.types import Message

OPERATIONS = "+-*"
NUMBERS = [str(number) for number in range(100)]
END = "<end>"
WORDS = [
    *("<unk>", END, "<question>", "<agent>", "<result>", "calc", "look", "answer"),
    *OPERATIONS,
    *string.ascii_lowercase,
    *NUMBERS,
    *("Other", "tries", "of", "this", "task", "began", "with", "the", "actions", "below", "Begin", "different", "one"),
    *("left", "operation", "right", "name"),
]
WORD = r"<\w+>|\w+|[-+*]"
"""All other signs are left out."""
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<agent> ' + message.content + ' <end> ' if message.role == 'assistant' else"
    " ('<question> ' if loop.first else '<result> ') + message.content + ' ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<agent>' }}{% endif %}"
)


class Question(NamedTuple):
    """A first operand, then operations with their operands; a hidden operand is the text of its name."""

    first: str
    rest: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return " ".join([self.first, *(word for pair in self.rest for word in pair)])

    @property
    def answer(self) -> int:
        value = told(self.first)
        for operation, operand in self.rest:
            value = computed(value, operation, told(operand))
        return value


def computed(left: int, operation: str, right: int) -> int:
    """Do one operation, modulo 100."""
    return {"+": left + right, "-": left - right, "*": left * right}[operation] % 100


def told(operand: str) -> int:
    """Return an operand's number; that of a hidden one follows from its name, and is 2 to 9."""
    return int(operand) if operand.isdigit() else 2 + zlib.crc32(operand.encode()) % 8


def question(dice: random.Random, steps: int) -> Question:
    """Draw a question that takes so many tool calls: 1 to 3 of ``look``, the others of ``calc``."""
    hidden = dice.randint(1, min(3, steps // 2))
    operations = steps - hidden
    operands = [str(dice.randint(2, 9)) for _ in range(operations + 1)]
    for place in dice.sample(range(operations + 1), hidden):
        operands[place] = f"{dice.choice(string.ascii_lowercase)} {dice.randrange(100)}"
    rest = tuple((dice.choice(OPERATIONS), operand) for operand in operands[1:])
    return Question(operands[0], rest)


def questions(seed: str, count: int, *, steps: Sequence[int] = (3, 4, 5, 6), held_out: bool = False) -> list[Question]:
    """Draw questions; no question is both among those held out and among the others, whatever the seeds are."""
    dice = random.Random(f"questions {seed}")
    found: list[Question] = []
    while len(found) < count:
        one = question(dice, dice.choice(steps))
        if (zlib.crc32(one.text.encode()) % 10 == 0) == held_out:
            found.append(one)
    return found


def tasks(asked: Sequence[Question]) -> list[tl.Task]:
    """Make tasks of questions; equal ones are tasks of their own."""
    return [tl.Task.ask(one.text, one.answer, id=f"{place}: {one.text}") for place, one in enumerate(asked)]


class Teacher:
    """Writes traces that are often wrong: in some contexts rarely, in others mostly.

    A context is an operation and its operand, where the teacher takes the next operation of ``+-*`` by mistake, or the
    letter of a hidden operand, where it guesses a number instead of looking.

    Args:
        seed: Of the contexts' error rates.
        least: The lowest error rate of a context.
        most: The highest one. Rates are drawn evenly in between; above .5 the likeliest turn is wrong.
    """

    def __init__(self, seed: int, least: float = 0.0, most: float = 0.7) -> None:
        dice = random.Random(f"teacher {seed}")
        contexts = [*((one, two) for one in OPERATIONS for two in range(2, 10)), *string.ascii_lowercase]
        self.rates = {context: dice.uniform(least, most) for context in contexts}

    def trace(self, asked: Question, dice: random.Random) -> list[str]:
        """Return turns and results in turn: ``calc 7 + 5``, ``12``, ..., the last a turn that answers."""
        written: list[str] = []
        value = self._operand(asked.first, written, dice)
        for operation, operand in asked.rest:
            right = self._operand(operand, written, dice)
            wrong = dice.random() < self.rates[operation, right]
            done = OPERATIONS[(OPERATIONS.index(operation) + wrong) % 3]
            written.append(f"calc {value} {done} {right}")
            value = computed(value, done, right)
            written.append(str(value))
        return [*written, f"answer {value}"]

    def _operand(self, operand: str, written: list[str], dice: random.Random) -> int:
        if operand.isdigit():
            return int(operand)
        if dice.random() < self.rates[operand[0]]:
            return dice.randint(2, 9)
        written += [f"look {operand}", str(told(operand))]
        return told(operand)

    def different(self, asked: Question, begun: Sequence[str], dice: random.Random) -> list[str]:
        """Return the first of 8 traces that begins with none of those turns, the last one where all do."""
        for _ in range(8):
            trace = self.trace(asked, dice)
            if trace[0] not in begun:
                break
        return trace


def transcript(asked: Question, trace: Sequence[str], said: str = "") -> Iterator[tuple[int, bool]]:
    """Yield a trace's token ids as the chat template writes them, and whether each is the model's own.

    Args:
        asked: The question.
        trace: Of a teacher.
        said: A message of the user behind the question.
    """
    yield from ((one, False) for one in ids(f"<question> {asked.text}"))
    if said:
        yield from ((one, False) for one in ids(f"<result> {said}"))
    for place, text in enumerate(trace):
        own = place % 2 == 0
        yield ID["<agent>" if own else "<result>"], False
        yield from ((one, own) for one in ids(f"{text} {END}" if own else text))


def avoided(turns: Sequence[str]) -> str:
    """Write the message with which ``Chain(avoid=True)`` lists how other chains began."""
    calls = [call for turn in turns for call in parsed(turn).calls]
    listed = "".join(f"\n- {call.name}({call.arguments})" for call in calls)
    return f"Other tries of this task began with the actions below. Begin with a different one.{listed}"


def ids(text: str) -> list[int]:
    """Return the token ids of a text, as the tokenizer does."""
    return [ID.get(word, 0) for word in re.findall(WORD, text)]


ID = {word: place for place, word in enumerate(WORDS)}


def write_tokenizer(folder: Path) -> str:
    """Write a tokenizer of whole words and its chat template; return the folder for ``TokenMode(tokenizer=...)``."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - analysis does not need it

    tokenizer = Tokenizer(models.WordLevel(ID, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": TEMPLATE}))
    return str(folder)


@tl.tool
async def calc(left: int, operation: str, right: int) -> str:
    """Do one operation, modulo 100.

    Args:
        left: The left operand.
        operation: One of + - *.
        right: The right operand.
    """
    return str(computed(left, operation, right))


@tl.tool
async def look(name: str) -> str:
    """Tell a hidden operand.

    Args:
        name: A letter and a number.
    """
    return str(told(name))


class Words:
    """The dialect: a turn that is neither a whole call of ``calc`` nor of ``look`` is an answer."""

    native = False

    def prompt(self, tools: Sequence[Definition]) -> str:
        return ""

    def sampling(self, given: tl.Sampling) -> tl.Sampling:
        return given

    def parse(self, choice: ReplyChoice, tools: Sequence[Definition]) -> tl.llms.Parsed:
        return parsed(choice.content)

    def observe(self, call: ToolCall, text: str, id: str) -> Message:
        return {"role": "user", "content": text}


def parsed(turn: str) -> tl.llms.Parsed:
    match turn.split():
        case ["calc", left, "+" | "-" | "*" as operation, right] if {left, right} <= {*NUMBERS}:
            return called("calc", left=int(left), operation=operation, right=int(right))
        case ["look", letter, number] if letter in [*string.ascii_lowercase] and number in NUMBERS:
            return called("look", name=f"{letter} {number}")
        case ["answer", *rest]:
            return tl.llms.Parsed(answer=" ".join(rest) or "none")
    return tl.llms.Parsed(answer="none")


def called(name: str, /, **arguments: Any) -> tl.llms.Parsed:
    return tl.llms.Parsed(calls=[ToolCall("", name, json.dumps(arguments))])


def agent(steps: int = 6, temperature: float = 1.0) -> tl.Agent:
    """Make the agent for questions of up to so many steps; temperature 0 is greedy."""
    return tl.Agent(
        model="policy",
        tools=[calc, look],
        dialect=Words(),
        max_turns=steps + 2,
        sampling=tl.Sampling(max_tokens=6, temperature=temperature),
    )


def right(trajectory: tl.Trajectory) -> float:
    """Reward 1 for the right answer, else 0; a rollout without an answer is wrong."""
    return float(trajectory.answer in trajectory.task.reference)
