"""Steps, segments, what to share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from trunkline.scoring.answers import called_functions
from trunkline.tree.views import Kind, message_text
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from trunkline.tree.views import Tree
    from trunkline.types import Message


class Segment(NamedTuple):
    """Nodes between two places where a report may stand, without prompts."""

    node: int
    parent: int | None
    nodes: tuple[int, ...]
    leaf: bool
    branches: int


def reported_leaves(tree: Tree) -> dict[int, str | None]:
    """The leaves that get a report, ascending, each with a rollout's answer there."""
    core = tree.core
    answers: dict[int, str | None] = {}
    for number in range(core.rollouts):
        facts = core.rollout(number)
        if facts.termination is None or Termination(facts.termination) in UNSCORED or facts.turns == 0:
            continue
        known = answers.get(facts.leaf)
        answers[facts.leaf] = facts.answer if known is None else known
    return dict(sorted(answers.items()))


def segments(tree: Tree) -> list[Segment]:
    """Cut the paths to all reported leaves where they part and where they end."""
    core = tree.core
    leaves = reported_leaves(tree)
    # A parent has a smaller number than its children.
    children: dict[int, list[int]] = {}
    seen: set[int] = set()
    for leaf in leaves:
        node = leaf
        while node and node not in seen:
            seen.add(node)
            parent = core.node(node).parent
            children.setdefault(parent, []).append(node)
            node = parent
    found: list[Segment] = []
    # Of each node that was reached: the segment before, and what came since.
    reached: dict[int, tuple[int | None, tuple[int, ...]]] = {0: (None, ())}
    for node in sorted({0, *seen}):
        before, since = reached.pop(node)
        if node and core.node(node).kind != Kind.PROMPT:
            since = (*since, node)
        below = children.get(node, [])
        if since and (node in leaves or len(below) > 1):
            found.append(Segment(node, before, since, node in leaves, len(below)))
            before, since = len(found) - 1, ()
        for child in below:
            reached[child] = (before, since)
    return found


Share = Literal["auto", "always", "never"]
SHARES: Final[tuple[str, ...]] = ("auto", "always", "never")

GENERATED: Final = 4.0
"""The cost of a generated token in prompt tokens, as in most price lists."""


CACHED: Final = 0.5
"""The default cost of a cached prompt token, in uncached ones: price lists have 0.1 to 0.5, and of concurrent requests
not every one finds what another begins with."""


class Sizes(NamedTuple):
    """Estimated sizes of requests, in tokens."""

    frame: float
    report: float
    steps: Sequence[float]


def choose(
    found: Sequence[Segment], sizes: Sizes, share: Share, known: Collection[int] = (), cached: float = 1.0
) -> list[bool]:
    """Choose the segments after which a report is written; leaves always have one.

    A report at a branching point is one more request, but requests below read it instead of the steps above. ``auto``
    minimises the estimated cost: prompt tokens, ``GENERATED`` for a generated one, ``cached`` for a prompt token
    that an earlier request has begun with.
    """
    if share != "auto":
        return [at not in known and (share == "always" or segment.leaf) for at, segment in enumerate(found)]
    total: list[float] = []
    above: list[list[int]] = []
    for segment, size in zip(found, sizes.steps, strict=True):
        total.append(size + (0.0 if segment.parent is None else total[segment.parent]))
        above.append([-1] if segment.parent is None else [*above[segment.parent], segment.parent])
    # Of each segment and each one above it that may be the last with a report (-1 for none): the least that it and all
    # below it cost. Filled from below; each adds its own to what its parent's children cost.
    below: list[dict[int, float]] = [{} for _ in found]
    pays: list[dict[int, bool]] = [{} for _ in found]
    for at in range(len(found) - 1, -1, -1):
        segment = found[at]
        # The first request below it reads its report in full.
        after = below[at].get(at, 0.0) + ((1.0 - cached) * sizes.report if segment.branches else 0.0)
        costs: dict[int, float] = {}
        for last in above[at]:
            read = total[at] if last < 0 else total[at] - total[last] + sizes.report
            request = 0.0 if at in known else cached * (sizes.frame + read) + GENERATED * sizes.report
            without = below[at].get(last, 0.0)
            pays[at][last] = segment.leaf or at in known or request + after < without
            costs[last] = request + after if pays[at][last] else without
        if segment.parent is not None:
            for last, cost in costs.items():
                below[segment.parent][last] = below[segment.parent].get(last, 0.0) + cost
    chosen: list[bool] = []
    lasts: list[int] = []
    for at, segment in enumerate(found):
        last = -1 if segment.parent is None else lasts[segment.parent]
        pay = pays[at][last]
        lasts.append(at if pay else last)
        chosen.append(pay and at not in known)
    return chosen


_OPEN, _CLOSE = "<think>", "</think>"
_CALL: Final = re.compile(r"<(tool_call|search|visit|code|python)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_WRAPPED: Final = re.compile(r"\A\s*<(tool_response|information|result|output)>(.*?)(?:</\1>\s*)?\Z", re.DOTALL)
_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_THOUGHTS: Final = ("reasoning_content", "reasoning")


class ReportStep(NamedTuple):
    """One thought, call, result or message of a conversation."""

    kind: Literal["thought", "call", "result", "message"]
    text: str
    name: str = ""


def short_name(name: object) -> str:
    """A name that a model wrote, reduced to letters, digits and ``_.-``."""
    return (_NAME.sub("_", name)[:64] if isinstance(name, str) else "") or "unknown"


def clipped(text: str, limit: int) -> str:
    """Replace the middle of a long text by the number of characters left out."""
    left = len(text) - limit
    if left <= 0:
        return text
    head = limit * 2 // 3
    return f"{text[:head]}\n[{left:,} characters left out]\n{text[head + left :]}"


def without_prompt(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages from the model's first one on; entries that are no messages are left out."""
    # What is annotated need not be what was given: lists of messages come from files.
    given = [message for message in messages if isinstance(message, dict)]
    first = next((at for at, message in enumerate(given) if message.get("role") == "assistant"), len(given))
    return given[first:]


def steps(messages: Iterable[Message]) -> list[ReportStep]:
    """Read messages as thoughts, calls, results and other messages; malformed parts are no error.

    Calls stand in ``tool_calls`` or in tags, thoughts in ``reasoning_content``, think tags or plain text. A user
    message right behind a call is its result.
    """
    found: list[ReportStep] = []
    for message in messages:
        if message.get("role") == "assistant":
            found += _spoken(message)
            continue
        text = message_text(message)
        wrapped = _WRAPPED.match(text)
        brought = message.get("role") == "tool" or wrapped is not None or (bool(found) and found[-1].kind == "call")
        body = (wrapped[2] if wrapped is not None else text).strip()
        found.append(
            ReportStep("result", body) if brought else ReportStep("message", body, short_name(message.get("role")))
        )
    return found


def _spoken(message: Message) -> Iterator[ReportStep]:
    thought, visible = _apart(message_text(message))
    aside = next((message[key] for key in _THOUGHTS if isinstance(message.get(key), str)), "")
    native = (
        ReportStep("call", _written(call.get("arguments")), short_name(call.get("name")))
        for call in called_functions(message)
    )
    words = "\n".join(part for part in (aside.strip(), thought.strip(), _CALL.sub("", visible).strip()) if part)
    if words:
        yield ReportStep("thought", words)
    yield from native
    yield from _tagged(visible)


def _apart(text: str) -> tuple[str, str]:
    """The thinking in a text, and the rest."""
    if _CLOSE in text:
        thought, _, visible = text.rpartition(_CLOSE)
    elif _OPEN in text:
        visible, _, thought = text.partition(_OPEN)
    else:
        return "", text
    return thought.replace(_OPEN, "").replace(_CLOSE, ""), visible


def _tagged(text: str) -> Iterator[ReportStep]:
    for match in _CALL.finditer(text):
        body = match[2].strip()
        if match[1] != "tool_call":
            yield ReportStep("call", body, match[1])
            continue
        try:
            call = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            yield ReportStep("call", body, "unknown")
        else:
            yield ReportStep("call", _written(call.get("arguments")), short_name(call.get("name")))


def _written(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments.strip()
    try:
        return msgspec.json.encode(arguments).decode() if arguments is not None else ""
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""
