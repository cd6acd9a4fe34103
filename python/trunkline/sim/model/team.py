"""``sim-team``: every member of a team, each by the form of reply that its prompt asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.sim.model.agent import agent
from trunkline.sim.model.episode import find_subject
from trunkline.sim.model.forms import OFFER, forms_in
from trunkline.sim.model.solver import solver
from trunkline.sim.model.tagged import seek
from trunkline.sim.model.verdict import proposed, verifier
from trunkline.sim.model.writer import writer

if TYPE_CHECKING:
    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.draft import Draft
    from trunkline.sim.model.mind import Mind

__all__ = ["team"]

_SEVERAL: Final = 2


def team(conversation: Conversation, mind: Mind) -> Draft:
    """Play the part that the prompt asks for.

    A choice of verdicts is asked for where it is the last form that the prompt describes. Else a search, where that is
    described, or an answer too, where both are. Without, it is a synthesis where several answers stand unjudged, and
    otherwise an answer of one's own.
    """
    text = "\n".join(message.text for message in conversation.messages if message.role in {"system", "user"})
    forms = forms_in(text)
    if forms.verdict > max(forms.search, forms.answer):
        return verifier(conversation, mind)
    if conversation.tools:
        return agent(conversation, mind)
    if forms.search >= 0:
        return seek(conversation, mind, answers=forms.answer >= 0)
    if len(proposed(text)) >= _SEVERAL and not OFFER.search(text):
        return writer(conversation, mind)
    if find_subject(conversation).chain is not None:
        return seek(conversation, mind, searches=False)
    return solver(conversation, mind)
