"""A model picks one of several answers: it is asked, what it says is read, and whatever else it says is no pick."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from trunkline.bounds import text
from trunkline.errors import ConfigError, RolloutError
from trunkline.llm.request import Sampling
from trunkline.llm.spec import EndpointSpec
from trunkline.printable import printable, said
from trunkline.score.aggregators.aggregator import Decision
from trunkline.score.aggregators.ballot import Ballot, By
from trunkline.score.aggregators.clusters import Same, key_of, votes
from trunkline.score.aggregators.prompts import REMINDER, Option, Shown, options_text
from trunkline.score.aggregators.votes import check_options
from trunkline.score.answers import extract_answer
from trunkline.score.asking import Asker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline.score.aggregators.aggregator import Candidate

__all__ = ["Picker", "pick", "read_pick"]

_CHOICE: Final = re.compile(r"<choice>([^<>]{0,1000})(?:</choice>|\Z)", re.IGNORECASE)
_WHY: Final = 300


class Picker(msgspec.Struct, frozen=True):
    """What aggregators share that ask a model.

    Args:
        llm: A ``trunkline.LLM``, a base URL, an ``AsyncOpenAI`` client, or an object with ``async complete(request)``.
            What is opened for a decision is closed after it; to keep connections between many, give what
            ``LLM(...).open()`` returns, and close that yourself.
        model: The model's name, as its endpoint knows it.
        by: What weighs in the vote that decides where the model does not; see :class:`.votes.Weighted`.
        contain: See :class:`.votes.Majority`.
        same: See :class:`.votes.Majority`.
        sampling: How the model samples.
        seed: Seed of what is asked: equal candidates and seeds send equal requests.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    llm: Any
    model: str
    by: By = "confidence"
    contain: bool = False
    same: Same | None = None
    sampling: Sampling = Sampling()
    seed: int = 0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not text(f"{name}: model", self.model).strip():
            raise ConfigError(f"{name}: model is empty; name the model as its endpoint does")
        check_options(name, self.by, self.contain, self.same)
        if isinstance(self.llm, dict):
            # An LLM that came from another process, as the data that it is there.
            with contextlib.suppress(msgspec.ValidationError):
                msgspec.structs.force_setattr(self, "llm", msgspec.convert(self.llm, EndpointSpec))
        self.asker()

    def asker(self) -> Asker:
        """Who asks, for one decision."""
        return Asker(self.llm, self.model, self.sampling, self.seed)


class _Menu(NamedTuple):
    """Answers in the order in which they are shown, which is that of their keys.

    Attributes:
        answers: One for each party.
        numbers: From the key of every spelling to its answer's position.
    """

    answers: tuple[str, ...]
    numbers: dict[str, int]


def read_pick(reply: str, count: int, numbers: Mapping[str, int]) -> int | None:
    """Read which answer a model picked.

    The last ``<choice>`` counts: a number, or one of the answers. Without any, the last ``<answer>`` does, if it is one
    of the answers.

    Args:
        reply: What the model said, its thinking left out.
        count: How many answers there are.
        numbers: From the key of each spelling of an answer to its position.

    Returns:
        The position of the answer, from 0; None if none of them was picked.
    """
    choices = _CHOICE.findall(reply)
    if choices:
        word = choices[-1].strip()
        if word.isascii() and word.isdigit() and len(word) < 10 and 1 <= int(word) <= count:
            return int(word) - 1
        return numbers.get(key_of(word))
    return numbers.get(key_of(extract_answer(reply))) if "<answer>" in reply else None


async def pick(
    asker: Asker,
    name: str,
    instructions: str,
    question: str,
    candidates: Sequence[Candidate],
    ballot: Ballot,
    reports: Mapping[int, Shown],
) -> Decision:
    """Let a model pick one of the answers of a ballot; where it picks none, the ballot decides.

    Where all tries agree, and where nobody answered, nothing is asked.

    Args:
        asker: Who asks.
        name: The aggregator's name.
        instructions: What the model is told to do.
        question: What was asked of the tries.
        candidates: The tries.
        ballot: Their votes, counted.
        reports: What the try of each id says for itself.

    Raises:
        EndpointError: The model's endpoint serves nobody.
    """
    if len(ballot.parties) < 2:
        why = "every try that answered agrees" if ballot.parties else ""
        return Decision(
            answer=ballot.answer, parties=ballot.parties, method=name, why=ballot.why or why, usage=asker.usage
        )
    answers = {one.id: one.answer or "" for one in candidates}
    ordered = sorted(zip(ballot.keys, ballot.parties, strict=True), key=lambda item: item[0])
    parties = [party for _, party in ordered]
    options = [
        Option(party.answer, len(party.voters), [reports[one] for one in party.voters if one in reports])
        for party in parties
    ]
    numbers = {key_of(answers[one]): place for place, party in enumerate(parties) for one in party.voters}
    undecided = [reports[one] for one, answer in answers.items() if not votes(answer) and one in reports]
    shown = options_text(question, options, undecided)
    chosen, why = await _asked(asker, instructions, shown, len(parties), numbers)
    if chosen is None:
        why = f"{why}, so the votes decide" + (f" ({ballot.why})" if ballot.why else "")
    return Decision(
        answer=ballot.answer if chosen is None else parties[chosen].answer,
        parties=ballot.parties,
        method=name,
        tied=chosen is None and ballot.tied,
        why=why,
        usage=asker.usage,
        fallback=chosen is None,
    )


async def _asked(
    asker: Asker, instructions: str, shown: str, count: int, numbers: Mapping[str, int]
) -> tuple[int | None, str]:
    """Ask, and once more if the reply picks none; the position of what was picked, and why, or why none was."""
    for draw in range(2):
        question = shown if draw == 0 else shown + REMINDER.format(most=count)
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": question}]
        try:
            reply = await asker.ask(messages, draw)
        except RolloutError as problem:  # an endpoint that serves nobody is none
            return None, f"the model gave no reply: {said(problem, _WHY)}"
        chosen = read_pick(reply.text, count, numbers)
        if chosen is not None:
            return chosen, printable(" ".join(_CHOICE.sub("", reply.text).split()), _WHY)
    return None, "the model picked none of the answers, twice"
