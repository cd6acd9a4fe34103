"""The options in view, and calls as they are written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.sim.model.choices import Point, options
from trunkline.sim.model.episode import SEARCH_KEYS, VISIT_KEYS, Names, chain_key, facts_in
from trunkline.sim.world.language import ANSWER_KIND, RELATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.sim.model.chat_template import Conversation, Tool
    from trunkline.sim.model.episode import Episode
    from trunkline.sim.model.generation import Draft, Mind
    from trunkline.sim.world.language import Chain


__all__ = ["Use", "best_guess", "close_call", "forced_call", "hold", "open_call", "quoted", "uses", "walk"]


class Belief(NamedTuple):
    """The name or year believed, None where no text offers any, and whether several options had mass."""

    object: str | None
    choice: bool


def hold(draft: Draft, episode: Episode, mind: Mind, texts: Sequence[str], *, actions: bool) -> Belief:
    """Decide on the current hop, from options in ``texts``, and write the belief as the end of a sentence."""
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
        named = dict.fromkeys(name for text in texts for fact in facts_in(text) for name in (fact.subject, fact.object))
        wrong = [name for name in named if name not in avoid]
    masses = options(point, right, wrong, mind.dials)
    if not masses:
        return Belief(None, False)
    choice = draft.choose(mind, {f" {option}": mass for option, mass in masses.items()})
    # A hop was settled that is as hard as the others, which are out of view.
    draft.believe(masses[choice.chosen[1:]] ** hops)
    return Belief(choice.chosen[1:], max(choice.masses) < 0.999)


def decoys(kind: str, relation: str | None, texts: Iterable[str], avoid: set[str]) -> list[str]:
    """Names of a kind in texts: first other objects of the relation, then all others, without those to avoid."""
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
    """The answer that follows from texts in which the whole chain is stated, and all its names."""
    names = Names(texts)
    name = chain.anchor
    for relation in chain.relations:
        said = names.stated(name, relation, texts)
        if said is None:
            return None
        name = said
    return name, names.of(name)


def best_guess(episode: Episode, mind: Mind) -> str:
    """An answer from the text in view where there is one, else any of the right kind."""
    found = walk(episode.rest, episode.view)
    if found is not None:
        return found[0]
    kind = ANSWER_KIND[episode.chain.relations[-1]]
    avoid = {name for path in episode.path for name in episode.names.of(path)}
    names = decoys(kind, episode.chain.relations[-1], episode.view, avoid)
    if names:
        return names[mind.below(min(len(names), 8))]
    return str(1500 + mind.below(500)) if kind == "date" else "unknown"


_BROKEN: Final = '"}\n</tool_call>'

_GOALS: Final = ("goal", "purpose", "question")


class Use(NamedTuple):
    """A tool, its parameter in use, whether that takes a list, and its parameter for the purpose, if any."""

    tool: Tool
    key: str
    listed: bool
    goal: str


def uses(conversation: Conversation) -> tuple[Use | None, Use | None]:
    """The tool to search with and the tool to visit with, by the names of their parameters."""
    return _find(conversation, SEARCH_KEYS), _find(conversation, VISIT_KEYS)


def open_call(draft: Draft, use: Use, mind: Mind) -> bool:
    """Begin a call, up to its value inside quotes; returns whether ``close_call`` must leave it broken."""
    begun = f', "arguments": {{{json.dumps(use.key)}: {"[" if use.listed else ""}"'
    heads = [f'<tool_call>\n{{"name": {json.dumps(name)}{begun}' for name in (use.tool.name, f"{use.tool.name}_all")]
    broken, unknown = _spoilt(mind)
    while unknown and not draft.either(True, heads[1], heads[0]):
        broken, unknown = _spoilt(mind)
    unknown = draft.either(unknown, heads[1], heads[0])
    draft.say(heads[unknown])
    return broken and not unknown


def close_call(draft: Draft, use: Use, *, broken: bool, goal: tuple[Mind, str, str, str] | None = None) -> None:
    """End a call after its value; a ``goal`` is the mind, the place of the choice, if any, and two wordings."""
    value, end = '"]' if use.listed else '"', "}}\n</tool_call>"
    purpose = f', {json.dumps(use.goal)}: "' if use.goal and goal is not None else ""
    if draft.either(broken, _BROKEN, value + (purpose or end)):
        draft.say(_BROKEN)
        return
    draft.say(value)
    if goal is not None and purpose:
        mind, place, first, second = goal
        draft.say(purpose)
        if place:
            mind.wording(draft, place, first, second)
        else:
            draft.say(first)
        draft.say('"')
    draft.say(end)


def forced_call(draft: Draft, conversation: Conversation, text: str) -> Draft:
    """A call with nothing left to look up, outside of any thinking; without tools the text is said instead."""
    search = _find(conversation, SEARCH_KEYS)
    if search is not None:
        value = json.dumps([text] if search.listed else text, ensure_ascii=False)
        arguments = f"{{{json.dumps(search.key)}: {value}}}"
        name = search.tool.name
    elif conversation.tools:
        arguments, name = "{}", conversation.tools[0].name
    else:
        draft.say(text)
        return draft
    draft.say(f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>')
    return draft


def quoted(text: str) -> str:
    """A text inside the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _spoilt(mind: Mind) -> tuple[bool, bool]:
    """Whether a call is left broken, and whether it names a tool that does not exist."""
    spoilt = mind.accident(mind.dials.malformed)
    broken = spoilt and mind.below(2) == 0
    return broken, spoilt and not broken


def _find(conversation: Conversation, keys: tuple[str, ...]) -> Use | None:
    for tool in conversation.tools:
        for key in keys:
            schema = tool.properties.get(key)
            if schema is not None:
                listed = isinstance(schema, dict) and schema.get("type") == "array"
                goal = next((name for name in _GOALS if name in tool.properties), "")
                return Use(tool, key, listed, goal)
    return None
