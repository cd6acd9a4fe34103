"""Integrate: reports of all tries, written where they lack, are brought together by a model that picks one answer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, ClassVar, Final

from trunkline.errors import RolloutError
from trunkline.score.aggregators.ballot import poll, weights
from trunkline.score.aggregators.clusters import key_of, votes
from trunkline.score.aggregators.picking import Picker, pick
from trunkline.score.aggregators.prompts import INTEGRATE, REPORT, Shown, transcript
from trunkline.score.answers import extract_answer, tail
from trunkline.score.reports.extract import extract
from trunkline.tree.vote import fold, normalise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.score.aggregators.aggregator import Candidate, Decision
    from trunkline.score.asking import Asker

__all__ = ["UNCLEAR", "Integrate"]

UNCLEAR: Final = 0.5
"""What the vote of a try counts whose report does not state its answer, as a share of that of another."""

_SEARCHED: Final = 20_000


class Integrate(Picker, frozen=True):
    """The answer that a model picks after it has read a report of every try, after ParallelMuse (arXiv 2510.24698).

    A try without a report gets one: a model writes it from the candidate's messages, for all of them at once. Where
    there are no messages the answer stands alone, and where that call fails or brings nothing, an extracted report
    stands for it (:func:`trunkline.score.reports.extract.extract`). A report that does not state its try's answer is
    marked as unclear, and the try's vote counts half. Then one call over all reports picks one of the answers, as for
    :class:`.synthesis.Synthesis`. Where all tries agree, nothing is asked.

    Args:
        llm: Who is asked; see :class:`.picking.Picker`, as for the other options.
        model: The model's name.
        by: What weighs in the vote that decides where the model does not.
        contain: See :class:`.votes.Majority`.
        same: See :class:`.votes.Majority`.
        sampling: How the model samples.
        seed: Seed of what is asked.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    name: ClassVar[str] = "integrate"
    reads_messages: ClassVar[bool] = True

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """See :meth:`.Aggregator.decide`.

        Raises:
            EndpointError: The model's endpoint serves nobody.
        """
        weigh, why = weights(candidates, self.by)
        agreed = len(poll(candidates, contain=self.contain, same=self.same).parties) < 2
        asker = self.asker()
        try:
            texts = [one.report for one in candidates] if agreed else await _reports(asker, question, candidates)
            reports = {
                one.id: Shown(text, states(text, one.answer))
                for one, text in zip(candidates, texts, strict=True)
                if text.strip()
            }
            counted = {
                one.id: (1.0 if weigh is None else weigh[one.id])
                * (UNCLEAR if one.id in reports and not reports[one.id].clear else 1.0)
                for one in candidates
                if votes(one.answer)
            }
            halved = sum(not reports[one].clear for one in counted if one in reports)
            if halved:
                unclear = f"{halved} of {len(counted)} votes count half, as their reports state no clear answer"
                why = f"{why}; {unclear}" if why else unclear
            ballot = poll(candidates, counted, contain=self.contain, same=self.same, why=why)
            return await pick(asker, self.name, INTEGRATE, question, candidates, ballot, reports)
        finally:
            await asker.close()


def states(report: str, answer: str | None) -> bool:
    """Whether a report states an answer: between answer tags or in a box where it has any, else as words at its end.

    Args:
        report: The report.
        answer: The answer; None is stated by none.
    """
    if answer is None or not votes(answer):
        return False
    ending = tail(report.strip(), _SEARCHED)
    # Without tags and without a box this is all that was said.
    stated = extract_answer(ending)
    key = key_of(answer)
    words = f" {fold(stated)} "
    return key_of(stated) == key or any(f" {form} " in words for form in (key, normalise(answer)))


async def _reports(asker: Asker, question: str, candidates: Sequence[Candidate]) -> list[str]:
    """A report for each candidate, those that lack written at once; it is empty where there is nothing to report."""
    written = await asyncio.gather(
        *(_report(asker, question, candidate) for candidate in candidates), return_exceptions=True
    )
    found = []
    for one in written:
        if isinstance(one, BaseException):
            raise one
        found.append(one)
    return found


async def _report(asker: Asker, question: str, candidate: Candidate) -> str:
    """The report of one candidate; one call that fails costs no other candidate anything."""
    if candidate.report.strip() or not candidate.messages:
        return candidate.report
    told = transcript(question, candidate.messages)
    with contextlib.suppress(RolloutError):
        reply = await asker.ask([{"role": "system", "content": REPORT}, {"role": "user", "content": told}])
        if reply.text.strip():
            return reply.text.strip()
    return extract(candidate.messages, answer=candidate.answer or "")
