"""The behaviours sim-agent, sim-tagged and sim-solver.

A hop of a question takes two turns: the agent states its belief and searches for the next relation, then it chooses a
document among the hits and visits it. The last belief is the answer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from trunkline.errors import ConfigError
from trunkline.sim.model.belief import best_guess, close_call, forced_call, hold, open_call, quoted, uses
from trunkline.sim.model.choices import Point, options
from trunkline.sim.model.episode import Episode, again_text, chain_key, find_subject, query_text
from trunkline.sim.model.generation import Draft
from trunkline.sim.world.arithmetic import Step, evaluate
from trunkline.sim.world.language import RELATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.sim.model.belief import Use
    from trunkline.sim.model.chat_template import Conversation
    from trunkline.sim.model.generation import Mind

__all__ = ["agent", "seek", "solver", "state_confidence"]

_SIGNS: Final = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_NO_QUESTION: Final = "I see no question here that I can work on.\n<answer>unknown</answer>"
_SETTLE: Final = "I have to settle for what I have."


def solver(conversation: Conversation, mind: Mind) -> Draft:
    """Solve the word problem, or answer a question from the text in view."""
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    subject = find_subject(conversation)
    if subject.steps is not None:
        return _solve(draft, subject.steps, mind)
    mind.think(draft, "\n</think>\n")
    answer = "unknown"
    if subject.chain is not None:
        answer = best_guess(Episode(conversation, subject.chain), mind)
    draft.say(f"The answer is \\boxed{{{answer}}}.\n<answer>{answer}</answer>")
    return draft


def _solve(draft: Draft, steps: tuple[Step, ...], mind: Mind) -> Draft:
    """Write a solution step by step; a wrong total is carried on."""
    key = "\x1f".join(f"{step.op} {step.value}" for step in steps)
    total = steps[0].value
    mind.think(draft, f"At first there are {total}.")
    for index, step in enumerate(steps[1:]):
        point = Point(key, index, len(steps) - 1, False, False)
        masses = options(point, str(_apply(total, step)), _slips(total, step), mind.dials)
        draft.say(f"\nStep {index + 1}: {total} {_SIGNS[step.op]} {step.value} =")
        chosen = draft.choose(mind, {f" {option}": mass for option, mass in masses.items()}).chosen
        draft.believe(masses[chosen[1:]])
        total = int(chosen)
        draft.say(".")
    draft.say(f"\n</think>\nThe answer is \\boxed{{{total}}}.\n<answer>{total}</answer>")
    return draft


def _apply(total: int, step: Step) -> int:
    try:
        return evaluate((Step("start", total), step))[-1]
    except ConfigError:
        return total // max(step.value, 1)


def _slips(total: int, step: Step) -> list[str]:
    """Wrong results: one off, ten off, and that of another operation."""
    right = _apply(total, step)
    mistaken = total + step.value if step.op in {"subtract", "multiply"} else total - step.value
    slips = [right + 1, right - 1, mistaken, right + 10, right - 10]
    return [str(abs(slip)) for slip in slips if abs(slip) != right]


_EXPLORED: Final = 2
_SEARCHES: Final = 3
_MISSED: Final = "I opened the wrong entry; the right one was in the list."
_WRONG: Final = "An earlier step was wrong: the text I have says otherwise."
_UNSUPPORTED: Final = "An earlier step had no support, so I return to it."
_REPAIR: Final = "An earlier step was wrong, so I return to it."


def agent(conversation: Conversation, mind: Mind) -> Draft:
    """Write the agent's next reply."""
    draft = Draft(conversation.opened)
    if not draft.left and conversation.calling != "required" and mind.accident(mind.dials.empty):
        return draft
    subject = find_subject(conversation)
    if subject.chain is not None:
        return _AgentTurn(draft, Episode(conversation, subject.chain), mind, conversation).write()
    if conversation.calling == "required" and conversation.tools:
        return forced_call(draft, conversation, "the question")
    if subject.steps is not None:
        return _solve(draft, subject.steps, mind)
    draft.say(_NO_QUESTION)
    return draft


class _Turn:
    """One turn on a question of the language."""

    def __init__(self, draft: Draft, episode: Episode, mind: Mind, place: str) -> None:
        self.draft = draft
        self.episode = episode
        self.mind = mind
        self.place = f"{chain_key(episode.chain)}\x1f{place}"

    def wording(self, first: str, second: str) -> None:
        """Add one of two wordings of a thought."""
        self.mind.wording(self.draft, f"{self.place}\x1fthink", first, second)

    def belief(self, texts: Sequence[str], *, actions: bool) -> str | None:
        """Write the belief about this hop and return its name or year; None where no text offers any."""
        phrase = RELATIONS[self.episode.relation].phrase.replace("{x}", self.episode.entity)
        self.draft.say(f"So {phrase} should be")
        belief = hold(self.draft, self.episode, self.mind, texts, actions=actions)
        if belief.object is not None:
            self.draft.say(".")
            if not belief.choice:
                self.draft.say(" ")
                self.wording("That settles it.", "This will do.")
        return belief.object


class _AgentTurn(_Turn):
    """A turn with tools."""

    def __init__(self, draft: Draft, episode: Episode, mind: Mind, conversation: Conversation) -> None:
        super().__init__(draft, episode, mind, str(episode.turns))
        self.search, self.visit = uses(conversation)
        self.conversation = conversation

    def write(self) -> Draft:
        episode, must = self.episode, self.conversation.calling == "required"
        self.mind.think(self.draft)
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
        episode = self.episode
        hits = episode.unvisited()
        titled = episode.titled()
        right = titled if titled in hits else hits[0]
        words = set(episode.entity.split())
        others = [hit for hit in hits if hit != right and hit.title not in episode.names.of(episode.entity)]
        others.sort(key=lambda hit: not words & set(hit.title.split()))
        point = Point(chain_key(episode.chain), episode.hop, len(episode.chain.relations), True, True)
        masses = options(point, right.id, [hit.id for hit in others] if titled else [], self.mind.dials)
        self.wording("Reading the best entry should tell more.", "Opening one of these documents comes next.")
        return self.call_visit(visit, masses)

    def after_page(self, texts: list[str]) -> Draft:
        """Read the texts found, and open another hit, search again, repair an earlier error or settle the hop."""
        episode = self.episode
        fact = episode.stated(episode.entity, episode.relation, texts)
        if fact is None and (self.visit is None or episode.titled() is None):
            unvisited = episode.unvisited()
            if self.visit is not None and unvisited and len(episode.visited) < _EXPLORED * episode.searches:
                self.wording(
                    "This was not it; the next entry may be.", "That document says nothing of use, so on to another."
                )
                return self.call_visit(self.visit, {unvisited[0].id: 1.0})
            again = self.again()
            if again is not None:
                return again
        return self.repair(fact) or self.believe(texts)

    def repair(self, fact: str | None) -> Draft | None:
        """Return to an earlier error, where it is noticed."""
        episode = self.episode
        titled = episode.titled()
        missed = titled if fact is None and titled in episode.unvisited() else None
        error = episode.error()
        if error is not None:
            hop, said = error
            why = _UNSUPPORTED if said is None else _WRONG
            if self.draft.agrees(self.mind.notices(), why):
                self.draft.say(why)
                return self.look_for(said or episode.path[hop], hop + (said is not None))
        elif missed is not None and self.visit is not None and self.draft.agrees(self.mind.notices(), _MISSED):
            self.draft.say(_MISSED)
            return self.call_visit(self.visit, {missed.id: 1.0})
        return None

    def believe(self, texts: list[str]) -> Draft:
        """Settle this hop and search for the next one, or answer."""
        found = self.belief(texts, actions=self.visit is not None)
        if found is None:
            self.draft.say(" something I cannot find. ")
            return self.guess()
        return self.look_for(found, self.episode.hop + 1)

    def again(self) -> Draft | None:
        """Search once more for the same hop, in other words; None after the last such search."""
        episode = self.episode
        if episode.searches >= _SEARCHES:
            return None
        self.draft.say("I should search in other words.")
        return self.call_search(again_text(episode), None)

    def look_for(self, name: str, hop: int) -> Draft:
        """Search for a hop's relation of an entity; behind the last hop the entity is the answer."""
        if hop >= len(self.episode.chain.relations):
            return self.answer(name)
        if hop == 0 and self.episode.last == "none":
            self.wording("A search is the way to start.", "I begin with a search.")
        relation = self.episode.chain.relations[hop]
        return self.call_search(query_text(name, relation), query_text(name, relation, reverse=True))

    def guess(self) -> Draft:
        self.draft.say(_SETTLE)
        return self.answer(best_guess(self.episode, self.mind))

    def answer(self, text: str) -> Draft:
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
        self.draft.say("\n</think>\n")
        broken = open_call(self.draft, visit, self.mind)
        choice = self.draft.choose(self.mind, {quoted(option): mass for option, mass in masses.items()})
        place = f"{self.place}\x1fcall" if max(choice.masses) > 0.999 else ""
        keywords = RELATIONS[self.episode.relation].keywords
        goal = (self.mind, place, f"find {keywords}", f"look for {keywords}")
        close_call(self.draft, visit, broken=broken, goal=goal)
        return self.draft


def seek(conversation: Conversation, mind: Mind, *, searches: bool = True, answers: bool = True) -> Draft:
    """Write the next thought and a search or an answer; without ``searches`` an answer, without ``answers`` a search.

    Searches and their results may stand in one message.
    """
    draft = Draft(conversation.opened.rpartition("</information>")[2].lstrip())
    if not conversation.opened and mind.accident(mind.dials.empty):
        return draft
    subject = find_subject(conversation)
    if subject.chain is not None:
        episode = Episode(conversation, subject.chain)
        if episode.last == "none":
            episode.infer(conversation.said("user"))
        turn = _TaggedTurn(draft, episode, mind, answers=answers)
        return turn.write() if searches else turn.conclude()
    if subject.steps is not None:
        return _solve(draft, subject.steps, mind)
    draft.say(_NO_QUESTION)
    return draft


class _TaggedTurn(_Turn):
    """A turn with searches between tags."""

    def __init__(self, draft: Draft, episode: Episode, mind: Mind, *, answers: bool) -> None:
        super().__init__(draft, episode, mind, f"{len(episode.path)}\x1f{episode.searches}")
        self.answers = answers

    def write(self) -> Draft:
        draft, episode, mind = self.draft, self.episode, self.mind
        mind.think(draft)
        if episode.last == "none":
            self.wording("A search is the way to start.", "I begin with a search.")
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
        self.mind.think(self.draft)
        if self.episode.arrived:
            return self.believe()
        self.draft.say(_SETTLE)
        return self.answer(best_guess(self.episode, self.mind))

    def believe(self) -> Draft:
        """Settle this hop and search for the next one, or answer."""
        found = self.belief([self.episode.found], actions=False)
        if found is None:
            self.draft.say(" something I cannot find.")
            return self.answer(best_guess(self.episode, self.mind))
        if self.episode.hop + 1 < len(self.episode.chain.relations):
            return self.search(found, self.episode.hop + 1)
        return self.answer(found)

    def search(self, name: str, hop: int) -> Draft:
        relation = self.episode.chain.relations[hop]
        self.draft.say("\n</think>\n<search>")
        query, other = query_text(name, relation), query_text(name, relation, reverse=True)
        self.mind.wording(self.draft, f"{self.place}\x1fcall", query, other)
        self.draft.say("</search>")
        return self.draft

    def answer(self, text: str) -> Draft:
        """End with an answer, or with another search where no answer is wanted."""
        form = f"<answer>{text}</answer>" if self.answers else f"<search>{again_text(self.episode)}</search>"
        self.draft.say(f"\n</think>\n{form}")
        return self.draft


_TAG: Final = "<confidence>"
_GUESS: Final = 0.2


def state_confidence(draft: Draft, conversation: Conversation) -> None:
    """End an answer with its confidence between ``<confidence>`` tags, if a prompt shows that form.

    The confidence is the model's own mass at temperature 1: of a solution the product over its steps, of a search the
    mass of the last hop to the power of the number of hops. So shared misbeliefs are held with confidence.
    """
    asked = any(message.role in {"system", "user"} and _asks(message.text) for message in conversation.messages)
    if asked and f"{conversation.opened}{draft.text()}".rstrip().endswith("</answer>"):
        draft.say(f"\n{_TAG}{_GUESS if draft.sure is None else draft.sure:.2f}</confidence>")


@lru_cache(maxsize=4096)
def _asks(text: str) -> bool:
    return _TAG in text.casefold()
