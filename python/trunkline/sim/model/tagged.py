"""``sim-tagged``: searches with ``<search>``, reads ``<information>`` and answers with ``<answer>``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.sim.model.belief import best_guess, hold
from trunkline.sim.model.draft import Draft
from trunkline.sim.model.episode import Episode, again_text, chain_key, find_subject, query_text
from trunkline.sim.model.solver import solve
from trunkline.sim.world.language import RELATIONS

if TYPE_CHECKING:
    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.mind import Mind

__all__ = ["seek", "tagged"]

_SEARCHES: Final = 3
_REPAIR: Final = "An earlier step was wrong, so I return to it."


def tagged(conversation: Conversation, mind: Mind) -> Draft:
    """Write the next thought and the search or answer that follows it."""
    return seek(conversation, mind)


def seek(conversation: Conversation, mind: Mind, *, searches: bool = True, answers: bool = True) -> Draft:
    """Write the next thought, and a search or an answer.

    Args:
        conversation: What was said; searches and what they found may stand in one message.
        mind: What to draw with.
        searches: Whether a search is wanted; else an answer is given, whatever was found.
        answers: Whether an answer is wanted; else a search is made, whatever was found.
    """
    draft = Draft(conversation.opened.rpartition("</information>")[2].lstrip())
    if not conversation.opened and mind.accident(mind.dials.empty):
        return draft
    subject = find_subject(conversation)
    if subject.chain is not None:
        episode = Episode(conversation, subject.chain)
        if episode.last == "none":
            episode.infer("\n".join(message.text for message in conversation.messages if message.role == "user"))
        turn = _Turn(draft, episode, mind, answers=answers)
        return turn.write() if searches else turn.conclude()
    if subject.steps is not None:
        return solve(draft, subject.steps, mind)
    draft.say("I see no question here that I can work on.\n<answer>unknown</answer>")
    return draft


class _Turn:
    """One turn on a question of the language."""

    def __init__(self, draft: Draft, episode: Episode, mind: Mind, *, answers: bool = True) -> None:
        self.draft = draft
        self.episode = episode
        self.mind = mind
        self.answers = answers
        self.place = f"{chain_key(episode.chain)}\x1f{len(episode.path)}\x1f{episode.searches}"

    def write(self) -> Draft:
        """Write the turn."""
        draft, episode, mind = self.draft, self.episode, self.mind
        draft.say("<think>\n")
        mind.fill(draft)
        if episode.last == "none":
            place = f"{self.place}\x1fthink"
            mind.wording(draft, place, "A search is the way to start.", "I begin with a search.")
            return self.search(episode.chain.anchor, 0)
        fact = episode.stated(episode.entity, episode.relation, [episode.found])
        if fact is None and episode.searches < _SEARCHES:
            query = again_text(episode)
            draft.say(f"That did not say; I search in other words.\n</think>\n<search>{query}</search>")
            return draft
        error = episode.error()
        if error is not None and draft.agrees(mind.notices(), _REPAIR):
            hop, said = error
            draft.say(_REPAIR)
            return self.search(said or episode.path[hop], hop + (said is not None))
        return self.believe()

    def conclude(self) -> Draft:
        """Answer now."""
        self.draft.say("<think>\n")
        self.mind.fill(self.draft)
        if self.episode.arrived:
            return self.believe()
        self.draft.say("I have to settle for what I have.")
        return self.answer(best_guess(self.episode, self.mind))

    def believe(self) -> Draft:
        """Settle this hop and search for the next one, or answer."""
        draft, episode, mind = self.draft, self.episode, self.mind
        phrase = RELATIONS[episode.relation].phrase.replace("{x}", episode.entity)
        draft.say(f"So {phrase} should be")
        belief = hold(draft, episode, mind, [episode.found], actions=False)
        if belief.object is None:
            draft.say(" something I cannot find.")
            return self.answer(best_guess(episode, mind))
        draft.say(".")
        if not belief.choice:
            draft.say(" ")
            mind.wording(draft, f"{self.place}\x1fthink", "That settles it.", "This will do.")
        if episode.hop + 1 < len(episode.chain.relations):
            return self.search(belief.object, episode.hop + 1)
        return self.answer(belief.object)

    def search(self, name: str, hop: int) -> Draft:
        """End with a search for a hop's relation of an entity."""
        relation = self.episode.chain.relations[hop]
        self.draft.say("\n</think>\n<search>")
        query, other = query_text(name, relation), query_text(name, relation, reverse=True)
        self.mind.wording(self.draft, f"{self.place}\x1fcall", query, other)
        self.draft.say("</search>")
        return self.draft

    def answer(self, text: str) -> Draft:
        """End with an answer, or with another search where none is wanted."""
        form = f"<answer>{text}</answer>" if self.answers else f"<search>{again_text(self.episode)}</search>"
        self.draft.say(f"\n</think>\n{form}")
        return self.draft
