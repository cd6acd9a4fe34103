"""``sim-agent``: answers questions with a search tool and a visit tool, over native tool calls.

A hop takes two turns. In the first the agent says what it believes and searches for the next relation; in
the second it chooses a document among the hits and visits it. The last belief is the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.sim.model.belief import best_guess, hold
from trunkline.sim.model.calls import close_call, forced_call, open_call, quoted, uses
from trunkline.sim.model.choice import Point, options
from trunkline.sim.model.draft import Draft
from trunkline.sim.model.episode import Episode, again_text, chain_key, find_subject, query_text
from trunkline.sim.model.solver import solve
from trunkline.sim.world.language import RELATIONS

if TYPE_CHECKING:
    from trunkline.sim.model.calls import Use
    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.mind import Mind

__all__ = ["agent"]

_EXPLORED: Final = 2
_SEARCHES: Final = 3
_MISSED: Final = "I opened the wrong entry; the right one was in the list."
_WRONG: Final = "An earlier step was wrong: the text I have says otherwise."
_UNSUPPORTED: Final = "An earlier step had no support, so I return to it."


def agent(conversation: Conversation, mind: Mind) -> Draft:
    """Write the agent's next reply.

    Args:
        conversation: The messages and tools.
        mind: What to draw with.
    """
    draft = Draft(conversation.opened)
    if not draft.left and conversation.calling != "required" and mind.accident(mind.dials.empty):
        return draft
    subject = find_subject(conversation)
    if subject.chain is None:
        if conversation.calling == "required" and conversation.tools:
            return forced_call(draft, conversation, "the question")
        if subject.steps is not None:
            return solve(draft, subject.steps, mind)
        draft.say("I see no question here that I can work on.\n<answer>unknown</answer>")
        return draft
    return _Turn(draft, Episode(conversation, subject.chain), mind, conversation).write()


class _Turn:
    """One turn on a question of the language."""

    def __init__(self, draft: Draft, episode: Episode, mind: Mind, conversation: Conversation) -> None:
        self.draft = draft
        self.episode = episode
        self.mind = mind
        self.search, self.visit = uses(conversation)
        self.conversation = conversation
        self.place = f"{chain_key(episode.chain)}\x1f{episode.turns}"

    def write(self) -> Draft:
        episode, must = self.episode, self.conversation.calling == "required"
        self.draft.say("<think>\n")
        self.mind.fill(self.draft)
        limit = 6 * len(episode.chain.relations) + 6
        if self.conversation.calling == "none" or self.search is None or (episode.turns > limit and not must):
            return self.guess()
        if episode.last == "none":
            return self.look_for(episode.chain.anchor, 0)
        if episode.last == "search":
            if self.visit is None:
                return self.after_page([episode.found])
            if episode.unvisited():
                return self.choose_document(self.visit)
            return self.again() or self.guess()
        return self.after_page(episode.pages)

    def choose_document(self, visit: Use) -> Draft:
        """Choose among the hits of the last search."""
        episode = self.episode
        hits = episode.unvisited()
        titled = episode.titled()
        right = titled if titled in hits else hits[0]
        words = set(episode.entity.split())
        others = [hit for hit in hits if hit != right and hit.title not in episode.names.of(episode.entity)]
        others.sort(key=lambda hit: not words & set(hit.title.split()))
        point = Point(chain_key(episode.chain), episode.hop, len(episode.chain.relations), True, True)
        masses = options(point, right.id, [hit.id for hit in others] if titled else [], self.mind.dials)
        self.mind.wording(
            self.draft,
            f"{self.place}\x1fthink",
            "Reading the best entry should tell more.",
            "Opening one of these documents comes next.",
        )
        return self.call_visit(visit, masses)

    def after_page(self, texts: list[str]) -> Draft:
        """Read what was found, and go on from there."""
        episode = self.episode
        fact = episode.stated(episode.entity, episode.relation, texts)
        if fact is None and (self.visit is None or episode.titled() is None):
            unvisited = episode.unvisited()
            if self.visit is not None and unvisited and len(episode.visited) < _EXPLORED * episode.searches:
                self.mind.wording(
                    self.draft,
                    f"{self.place}\x1fthink",
                    "This was not it; the next entry may be.",
                    "That document says nothing of use, so on to another.",
                )
                return self.call_visit(self.visit, {unvisited[0].id: 1.0})
            again = self.again()
            if again is not None:
                return again
        return self.repair(fact) or self.believe(texts)

    def repair(self, fact: str | None) -> Draft | None:
        """Notice an earlier error and go back to it."""
        episode = self.episode
        titled = episode.titled()
        missed = titled if fact is None and titled in episode.unvisited() else None
        error = episode.error()
        if error is not None:
            hop, said = error
            why, name, hop = _WRONG, said or episode.path[hop], hop + (said is not None)
            if said is None:
                why = _UNSUPPORTED
            if self.draft.agrees(self.mind.notices(), why):
                self.draft.say(why)
                return self.look_for(name, hop)
        elif missed is not None and self.visit is not None and self.draft.agrees(self.mind.notices(), _MISSED):
            self.draft.say(_MISSED)
            return self.call_visit(self.visit, {missed.id: 1.0})
        return None

    def believe(self, texts: list[str]) -> Draft:
        """Settle this hop and search for the next one, or answer."""
        episode = self.episode
        phrase = RELATIONS[episode.relation].phrase.replace("{x}", episode.entity)
        self.draft.say(f"So {phrase} should be")
        belief = hold(self.draft, episode, self.mind, texts, actions=self.visit is not None)
        if belief.object is None:
            self.draft.say(" something I cannot find. ")
            return self.guess()
        self.draft.say(".")
        if not belief.choice:
            self.draft.say(" ")
            self.mind.wording(self.draft, f"{self.place}\x1fthink", "That settles it.", "This will do.")
        if episode.hop + 1 < len(episode.chain.relations):
            return self.look_for(belief.object, episode.hop + 1)
        return self.answer(belief.object)

    def again(self) -> Draft | None:
        """Search once more for the same hop, in other words; ``None`` when that was done often enough."""
        episode = self.episode
        if episode.searches >= _SEARCHES:
            return None
        self.draft.say("I should search in other words.")
        return self.call_search(again_text(episode), None)

    def look_for(self, name: str, hop: int) -> Draft:
        """Search for a hop's relation of an entity."""
        if hop >= len(self.episode.chain.relations):
            return self.answer(name)
        if hop == 0 and self.episode.last == "none":
            self.mind.wording(
                self.draft,
                f"{self.place}\x1fthink",
                "A search is the way to start.",
                "I begin with a search.",
            )
        relation = self.episode.chain.relations[hop]
        return self.call_search(query_text(name, relation), query_text(name, relation, reverse=True))

    def guess(self) -> Draft:
        """Answer without having found out."""
        self.draft.say("I have to settle for what I have.")
        return self.answer(best_guess(self.episode, self.mind))

    def answer(self, text: str) -> Draft:
        """End with an answer."""
        self.draft.say("\n</think>\n")
        if self.conversation.calling == "required" and self.conversation.tools:
            return forced_call(self.draft, self.conversation, text)
        self.draft.say(f"<answer>{text}</answer>")
        return self.draft

    def call_search(self, query: str, other: str | None) -> Draft:
        """End with a search, in one of two wordings."""
        if self.search is None:
            return self.answer(best_guess(self.episode, self.mind))
        self.draft.say("\n</think>\n")
        broken = open_call(self.draft, self.search, self.mind)
        if other is None:
            self.draft.say(quoted(query))
        else:
            self.mind.wording(self.draft, f"{self.place}\x1fcall", quoted(query), quoted(other))
        close_call(self.draft, self.search, broken=broken)
        return self.draft

    def call_visit(self, visit: Use, masses: dict[str, float]) -> Draft:
        """End with a visit to one of some documents."""
        self.draft.say("\n</think>\n")
        broken = open_call(self.draft, visit, self.mind)
        choice = self.draft.choose(self.mind, {quoted(option): mass for option, mass in masses.items()})
        place = f"{self.place}\x1fcall" if max(choice.masses) > 0.999 else ""
        keywords = RELATIONS[self.episode.relation].keywords
        goal = (self.mind, place, f"find {keywords}", f"look for {keywords}")
        close_call(self.draft, visit, broken=broken, goal=goal)
        return self.draft
