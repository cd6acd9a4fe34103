"""Tool calls as a simulated model writes them, shaped by the definitions that the request gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.sim.model.events import SEARCH_KEYS, VISIT_KEYS

if TYPE_CHECKING:
    from trunkline.sim.model.chat import Conversation, Tool
    from trunkline.sim.model.draft import Draft
    from trunkline.sim.model.mind import Mind

__all__ = ["Use", "close_call", "forced_call", "open_call", "quoted", "uses"]

_BROKEN: Final = '"}\n</tool_call>'
"""The end of a call that is left broken."""

_GOALS: Final = ("goal", "purpose", "question")


class Use(NamedTuple):
    """A tool and the parameter through which it is used.

    Attributes:
        tool: The tool.
        key: The parameter.
        listed: Whether the parameter takes a list.
        goal: A second parameter that wants the purpose of the call; empty where there is none.
    """

    tool: Tool
    key: str
    listed: bool
    goal: str


def uses(conversation: Conversation) -> tuple[Use | None, Use | None]:
    """The tool to search with and the tool to visit with, told by the names of their parameters."""
    return _find(conversation, SEARCH_KEYS), _find(conversation, VISIT_KEYS)


def open_call(draft: Draft, use: Use, mind: Mind) -> bool:
    """Begin a call, up to where its value stands inside quotes.

    Returns:
        Whether the call must be left broken, to be handed to ``close_call``.
    """
    begun = f', "arguments": {{{json.dumps(use.key)}: {"[" if use.listed else ""}"'
    heads = [f'<tool_call>\n{{"name": {json.dumps(name)}{begun}' for name in (use.tool.name, f"{use.tool.name}_all")]
    broken, unknown = _spoilt(mind)
    while unknown and not draft.either(True, heads[1], heads[0]):
        broken, unknown = _spoilt(mind)
    unknown = draft.either(unknown, heads[1], heads[0])
    draft.say(heads[unknown])
    return broken and not unknown


def close_call(draft: Draft, use: Use, *, broken: bool, goal: tuple[Mind, str, str, str] | None = None) -> None:
    """End a call after its value.

    Args:
        draft: The reply.
        use: As in ``open_call``.
        broken: As ``open_call`` returned it: brackets stay open and the arguments are no JSON.
        goal: For a tool that wants one: the mind, the place of the choice, and two wordings of the goal;
        with
            an empty place there is no choice.
    """
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
    """A call for who must make one and has nothing left to look up.

    Args:
        draft: The reply, outside of any thinking.
        conversation: The tools to choose from; without any the text is said instead.
        text: What to pass to a search.
    """
    search, _ = uses(conversation)
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
    """A text as it stands inside the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _spoilt(mind: Mind) -> tuple[bool, bool]:
    """Whether a call goes wrong: whether it is left broken, and whether it is to a tool that is not there."""
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
