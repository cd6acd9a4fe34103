"""A stated confidence: where a prompt asks for one, an answer ends with how sure the model is of it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.draft import Draft

__all__ = ["state_confidence"]

_TAG: Final = "<confidence>"

_GUESS: Final = 0.2
"""What a model says that settled nothing and guessed."""


def state_confidence(draft: Draft, conversation: Conversation) -> None:
    """End an answer with the confidence in it, between ``<confidence>`` tags, if a prompt shows that form.

    It is the mass that the model had for what it chose, at temperature 1: of a solution the product over its steps, of
    a search that of the last hop for every hop of the question, since the others are out of view. So it knows nothing
    of misbeliefs, which are held with confidence.

    Args:
        draft: The reply, written to its end.
        conversation: What it replies to.
    """
    asked = any(message.role in {"system", "user"} and _asks(message.text) for message in conversation.messages)
    if asked and f"{conversation.opened}{draft.text()}".rstrip().endswith("</answer>"):
        draft.say(f"\n{_TAG}{_GUESS if draft.sure is None else draft.sure:.2f}</confidence>")


@lru_cache(maxsize=4096)
def _asks(text: str) -> bool:
    return _TAG in text.casefold()
