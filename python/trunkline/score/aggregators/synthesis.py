"""Synthesis: a model is shown every answer with its reports, and picks one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trunkline.score.aggregators.ballot import poll, weights
from trunkline.score.aggregators.picking import Picker, pick
from trunkline.score.aggregators.prompts import SYNTHESIS, Shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.score.aggregators.aggregator import Candidate, Decision

__all__ = ["Synthesis"]


class Synthesis(Picker, frozen=True):
    """The answer that a model picks, given all answers and the reports of the tries: one call a question.

    It picks one of the candidates' answers and never writes another. A reply that picks none is asked for once more;
    then, and where the model gives no reply, the weighted vote decides and :attr:`Decision.why` says so. Where all
    tries agree, nothing is asked. Tries without a report are shown by their answer alone.

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

    name: ClassVar[str] = "synthesis"

    async def decide(self, question: str, candidates: Sequence[Candidate]) -> Decision:
        """See :meth:`.Aggregator.decide`.

        Raises:
            EndpointError: The model's endpoint serves nobody.
        """
        weigh, why = weights(candidates, self.by)
        ballot = poll(candidates, weigh, contain=self.contain, same=self.same, why=why)
        reports = {one.id: Shown(one.report) for one in candidates if one.report.strip()}
        asker = self.asker()
        try:
            return await pick(asker, self.name, SYNTHESIS, question, candidates, ballot, reports)
        finally:
            await asker.close()
