"""``sim-writer``: reports on what the messages hold, or merges several reports into one answer."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from trunkline.sim.model.belief import best_guess, walk
from trunkline.sim.model.choice import Point, options
from trunkline.sim.model.draft import Draft
from trunkline.sim.model.episode import Episode, Names, chain_key, facts_in, find_subject
from trunkline.sim.model.verdict import normal, proposed
from trunkline.sim.world.language import RELATIONS, Fact

if TYPE_CHECKING:
    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.mind import Mind
    from trunkline.sim.world.language import Chain

__all__ = ["write_report", "writer"]

_POINTS: Final = 4
"""A synthesis is one of this many equal points of a question, so it errs less than a search does."""

_MOST_FACTS: Final = 12


def writer(conversation: Conversation, mind: Mind) -> Draft:
    """Write a report: the statements that matter, then the answer.

    The answer is the one that the facts in view lead to; where they lead nowhere, the answer that most of
    the texts in view propose; where none does, a guess.
    """
    return write_report(conversation, mind)


def write_report(conversation: Conversation, mind: Mind, *, along: bool = False) -> Draft:
    """Write a report.

    Args:
        conversation: What to report on.
        mind: What to draw with.
        along: Whether of the statements only those matter that lead along the question's chain; else the first dozen.
    """
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    texts = [m.text for m in conversation.messages if m.role != "system"]
    answers = proposed("\n".join(texts))
    subject = find_subject(conversation)
    counted = Counter(normal(answer) for answer in answers)
    spelling = {normal(answer): answer for answer in answers}
    ranked = [spelling[key] for key, _ in counted.most_common()]
    right: str | None = ranked[0] if ranked else None
    key = "\x1f".join(sorted(counted))
    draft.say("<think>\n")
    mind.fill(draft)
    draft.say("\n</think>\n")
    if subject.chain is not None:
        key = chain_key(subject.chain)
        _state_facts(draft, _path(subject.chain, texts) if along else _all_facts(texts))
        found = walk(subject.chain, texts)
        if found is not None:
            right = found[0]
        elif right is None:
            right = best_guess(Episode(conversation, subject.chain), mind)
    elif not ranked:
        draft.say("There is nothing in the messages that I could report.\n<answer>unknown</answer>")
        return draft
    others = [answer for answer in ranked if right is None or normal(answer) != normal(right)]
    masses = options(Point(key, 0, _POINTS, False, False), right, others, mind.dials)
    draft.say("This leads to")
    answer = draft.choose(mind, {f" {option}": mass for option, mass in masses.items()}).chosen[1:]
    draft.believe(masses[answer])
    draft.say(f".\n<answer>{answer}</answer>")
    return draft


def _all_facts(texts: list[str]) -> list[Fact]:
    return list(dict.fromkeys(fact for text in texts for fact in facts_in(text)))[:_MOST_FACTS]


def _path(chain: Chain, texts: list[str]) -> list[Fact]:
    """What is stated of each hop of a chain, as far as it goes; names are those of the hop before."""
    names, name, facts = Names(texts), chain.anchor, []
    for relation in chain.relations:
        said = names.stated(name, relation, texts)
        if said is None:
            break
        facts.append(Fact(name, relation, said))
        name = said
    return facts


def _state_facts(draft: Draft, facts: list[Fact]) -> None:
    if facts:
        draft.say("What the sources say:\n")
        for fact in facts:
            phrase = RELATIONS[fact.relation].phrase.replace("{x}", fact.subject)
            draft.say(f"- {phrase} is given as {fact.object};\n")
