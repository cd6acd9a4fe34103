"""What there is to believe: the options that the text in view offers for one relation of one entity."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trunkline.sim.model.choice import Point, options
from trunkline.sim.model.episode import Names, chain_key, facts_in
from trunkline.sim.world.language import ANSWER_KIND, RELATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.sim.model.choice import Choice
    from trunkline.sim.model.draft import Draft
    from trunkline.sim.model.episode import Episode
    from trunkline.sim.model.mind import Mind
    from trunkline.sim.world.language import Chain

__all__ = ["Belief", "best_guess", "decoys", "hold", "walk"]


class Belief(NamedTuple):
    """What a turn came to believe.

    Attributes:
        object: The name or year; ``None`` where nothing in view could be believed.
        choice: Whether there was more than one option with mass.
    """

    object: str | None
    choice: bool


def hold(draft: Draft, episode: Episode, mind: Mind, texts: Sequence[str], *, actions: bool) -> Belief:
    """Decide what to believe about the current hop, and write it as the end of a sentence.

    Args:
        draft: The reply; it must end where a noun can follow.
        episode: The state.
        mind: What to draw with.
        texts: The text of this hop, which the options come from.
        actions: Whether the conversation has visits beside searches.
    """
    titled = episode.titled() if actions else None
    others = [hit for hit in episode.hits if hit != titled]
    whole = actions and (titled is None or not others)
    hops = len(episode.chain.relations)
    point = Point(chain_key(episode.chain), episode.hop, hops, False, actions, whole)
    right = episode.stated(episode.entity, episode.relation, texts)
    said = right or episode.stated(episode.entity, episode.relation, episode.view)
    avoid = set(episode.names.of(said)) if said is not None else set()
    for name in episode.path:
        avoid |= episode.names.of(name)
    if titled is not None and titled in episode.unvisited():
        # The wrong document is taken for the right one; what it says of the entity in passing goes unnoticed.
        right = None
    kind = ANSWER_KIND[episode.relation]
    wrong = decoys(kind, episode.relation, texts, avoid) or decoys(kind, None, episode.view, avoid)
    if not wrong:
        wrong = [name for name in _names(texts) if name not in avoid]
    masses = options(point, right, wrong, mind.dials)
    if not masses:
        return Belief(None, False)
    choice = draft.choose(mind, {f" {option}": mass for option, mass in masses.items()})
    # A hop was settled that is as hard as the others, which are out of view.
    draft.believe(masses[choice.chosen[1:]] ** hops)
    return Belief(choice.chosen[1:], _open(choice))


def decoys(kind: str, relation: str | None, texts: Iterable[str], avoid: set[str]) -> list[str]:
    """Names of a kind that texts mention: first other objects of the relation, then all the others.

    Args:
        kind: What is looked for, as in ``ANSWER_KIND``.
        relation: The relation that makes a mention most plausible, if any.
        texts: Where to look.
        avoid: Names to leave out.
    """
    near: dict[str, None] = {}
    far: dict[str, None] = {}
    for text in texts:
        for fact in facts_in(text):
            if fact.relation == relation:
                near[fact.object] = None
            elif ANSWER_KIND[fact.relation] == kind:
                far[fact.object] = None
            if RELATIONS[fact.relation].subject == kind:
                far[fact.subject] = None
    return [name for name in {**near, **far} if name not in avoid]


def walk(chain: Chain, texts: Sequence[str]) -> tuple[str, set[str]] | None:
    """The answer that follows from texts in which the whole chain is stated, and all its names.

    Args:
        chain: The question.
        texts: All that is in view.
    """
    names = Names(texts)
    name = chain.anchor
    for relation in chain.relations:
        said = names.stated(name, relation, texts)
        if said is None:
            return None
        name = said
    return name, names.of(name)


def best_guess(episode: Episode, mind: Mind) -> str:
    """An answer for who must give one: from the text in view where it can, else any of the right kind.

    Args:
        episode: The state; the search need not have come to an end.
        mind: What to draw with.
    """
    found = walk(episode.rest, episode.view)
    if found is not None:
        return found[0]
    kind = ANSWER_KIND[episode.chain.relations[-1]]
    avoid = {name for path in episode.path for name in episode.names.of(path)}
    names = decoys(kind, episode.chain.relations[-1], episode.view, avoid)
    if names:
        return names[mind.below(min(len(names), 8))]
    return str(1500 + mind.below(500)) if kind == "date" else "unknown"


def _names(texts: Iterable[str]) -> list[str]:
    seen: dict[str, None] = {}
    for text in texts:
        for fact in facts_in(text):
            seen[fact.subject] = None
            seen[fact.object] = None
    return list(seen)


def _open(choice: Choice) -> bool:
    return max(choice.masses) < 0.999
