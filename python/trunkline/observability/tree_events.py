"""Events of one task: its tree is rebuilt delta by delta, and the difference is told."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline._core import MESSAGE, OBSERVATION, PROMPT, TURN, CoreTree
from trunkline.observability.events import (
    ErrorEvent,
    MessageEvent,
    ObservationEvent,
    RequestedCall,
    RolloutEnded,
    RolloutForked,
    RolloutStarted,
    RunEvent,
    ScoreEvent,
    ScorePart,
    TaskEnded,
    ToolCallEvent,
    TurnEvent,
)
from trunkline.scoring.notes import graded
from trunkline.tree.records import Failure, version_in
from trunkline.tree.views import message_calls, message_text
from trunkline.types import FAILED, Usage

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from trunkline._core import RolloutView


class ToolUse(NamedTuple):
    """A tool call that ran; times in microseconds since the file was made."""

    rollout: int
    tool: str
    failed: bool
    micros: int
    started: int


class TreeEnd(NamedTuple):
    """What a row of ``trees`` says."""

    ended: str
    rollouts: int
    nodes: int
    digest: str
    error: str | None


class _Score(NamedTuple):
    """What was told of a rollout that has ended."""

    termination: str
    reward: float | None = None
    parts: tuple[ScorePart, ...] = ()


class TreeEvents:
    """The events of one task: its tree as far as they were told.

    Args:
        task: Id of the task.
        began: Seconds since 1970 from which times of calls count.
        most: The most characters of a text; None for all.
    """

    def __init__(self, task: str, began: float, most: int | None) -> None:
        self.seq = 0
        self._task, self._began, self._most = task, began, most
        self._time = began
        self._core = CoreTree()
        self._opened = 0
        self._paths: dict[tuple[int, ...], int] = {}
        self._leaves: dict[int, int] = {}  # last nodes of rollouts that grow
        self._scores: dict[int, _Score] = {}  # of those that have ended
        self._told: set[int] = {0}  # nodes
        self._sums = (0, 0.0)

    def grow(self, delta: bytes, ended: int, uses: Sequence[ToolUse]) -> Iterator[RunEvent]:
        """Apply a delta and tell what it changed.

        Args:
            delta: The next delta.
            ended: When the latest call that came with it ended, in microseconds; 0 where none did.
            uses: The tool calls that came with it.

        Raises:
            TreeError: The delta is damaged.
        """
        core = self._core
        core.apply(delta)
        self.seq += 1
        self._time = max(self._time, self._began + ended / 1e6)
        by_rollout: defaultdict[int, list[ToolUse]] = defaultdict(list)
        for use in uses:
            by_rollout[use.rollout].append(use)
        opened = range(self._opened, core.rollouts)
        self._opened = core.rollouts
        moved = False
        for number in [*self._leaves, *opened]:
            view = core.rollout(number)
            if number in opened:
                yield from self._open(number, view)
            if view.leaf != self._leaves[number] or view.termination is not None or number in by_rollout:
                moved = True
                yield from self._steps(number, view.leaf, by_rollout.pop(number, []))
            if view.termination is not None:
                del self._leaves[number]
                yield from self._end(number, view, view.termination)
        for number, some in by_rollout.items():
            if 0 <= number < core.rollouts:
                yield from self._calls(number, some)
        # Of rollouts that ended before, rewards and endings change in deltas of their own, as a rule.
        root = core.node(0)
        if opened or not moved or self._sums != (root.visits, root.value):
            self._sums = root.visits, root.value
            yield from self.look()

    def look(self) -> Iterator[RunEvent]:
        """Tell what changed of rollouts that had ended."""
        for number in self._scores:
            view = self._core.rollout(number)
            if view.termination is not None:
                yield from self._end(number, view, view.termination)

    def finish(self, end: TreeEnd) -> Iterator[RunEvent]:
        """Tell the end of the task."""
        yield from self.look()
        if end.error is not None:
            yield self._error(end.error, "task", None)
        yield TaskEnded(
            time=self._time,
            task=self._task,
            ended=end.ended,
            rollouts=end.rollouts,
            nodes=end.nodes,
            digest=end.digest,
        )

    def _open(self, number: int, view: RolloutView) -> Iterator[RunEvent]:
        path, point = view.path, view.point
        self._paths[path] = number
        self._leaves[number] = point
        nodes = self._behind(self._told, point)
        said = [node for node in nodes if self._core.node(node).kind != PROMPT]
        for node in nodes[: len(nodes) - len(said)]:
            yield from self._node(number, node)
        turns = self._core.node(point).turns
        if turns:
            yield RolloutForked(
                time=self._time,
                task=self._task,
                rollout=number,
                parent=self._paths.get(path[:-2]),
                node=point,
                turn=turns,
                path=path,
                subgroup=view.subgroup,
            )
        else:
            yield RolloutStarted(
                time=self._time, task=self._task, rollout=number, node=point, path=path, subgroup=view.subgroup
            )
        for node in said:
            yield from self._node(number, node)

    def _behind(self, stop: Container[int], last: int) -> list[int]:
        """The nodes on a path up to its last one, in order, behind those at which the way back to the root stops."""
        found = []
        while last not in stop:
            found.append(last)
            last = self._core.node(last).parent
        return found[::-1]

    def _steps(self, number: int, leaf: int, uses: list[ToolUse]) -> Iterator[RunEvent]:
        nodes = self._behind({0, self._leaves[number]}, leaf)
        self._leaves[number] = leaf
        # Calls that began together were made before the observations behind one turn.
        groups = [list(some) for _, some in groupby(uses, lambda use: use.started)]
        kinds = [self._core.node(node).kind for node in nodes]
        seen = [place for place, kind in enumerate(kinds) if kind == OBSERVATION]
        first = [place for place in seen if not place or kinds[place - 1] != OBSERVATION]
        if len(first) != len(groups):
            groups, first = [uses] if uses else [], seen[:1]
        before = dict(zip(first, groups, strict=False))
        for place, node in enumerate(nodes):
            yield from self._calls(number, before.pop(place, ()))
            yield from self._node(number, node)
        if uses and not first:
            yield from self._calls(number, uses)

    def _node(self, number: int, node: int) -> Iterator[RunEvent]:
        view = self._core.node(node)
        said = msgspec.json.decode(self._core.message(node), type=dict[str, Any])
        self._told.add(node)
        text, cut = self._text(message_text(said))
        if view.kind == TURN:
            aside, more = self._text(self._core.aside(node) or "")
            calls = []
            for own, name, given in message_calls(said):
                arguments, left = self._text(given)
                calls.append(RequestedCall(self._text(own)[0], self._text(name)[0], arguments))
                more += left
            yield TurnEvent(
                time=self._time,
                task=self._task,
                rollout=number,
                node=node,
                parent=view.parent,
                turn=view.turns - 1,
                text=text,
                reasoning=aside,
                tool_calls=tuple(calls),
                finish=view.finish,
                agent=view.agent,
                weights=version_in(view.namespace),
                prompt=view.prompt,
                generated=view.generated,
                cut=cut + more,
            )
        elif view.kind == OBSERVATION:
            yield ObservationEvent(
                time=self._time,
                task=self._task,
                rollout=number,
                node=node,
                parent=view.parent,
                call=self._text(str(said.get("tool_call_id") or ""))[0],
                text=text,
                agent=view.agent,
                cut=cut,
            )
        elif view.kind in {PROMPT, MESSAGE}:
            yield MessageEvent(
                time=self._time,
                task=self._task,
                rollout=None if view.kind == PROMPT else number,
                node=node,
                parent=view.parent,
                role=self._text(str(said.get("role") or ""))[0],
                text=text,
                agent=view.agent,
                cut=cut,
            )

    def _calls(self, number: int, uses: Iterable[ToolUse]) -> Iterator[RunEvent]:
        for use in uses:
            yield ToolCallEvent(
                time=self._time,
                task=self._task,
                rollout=number,
                tool=use.tool,
                failed=use.failed,
                started=self._began + use.started / 1e6,
                seconds=use.micros / 1e6,
            )

    def _end(self, number: int, view: RolloutView, termination: str) -> Iterator[RunEvent]:
        """Tell what is new of the end of a rollout and of its score."""
        known = self._scores.get(number)
        parts = tuple(ScorePart(one.reward, one.value, one.weight, one.why) for one in graded(view.note))
        score = _Score(termination, view.reward if math.isfinite(view.reward) else None, parts)
        if score == known:
            return
        self._scores[number] = score
        if known is None and view.error and termination in FAILED:
            yield self._error(view.error, "rollout", number)
        if known is None or known.termination != termination:
            answer, cut = (None, 0) if view.answer is None else self._text(view.answer)
            why, more = self._text(Failure.decode(view.error).message if view.error else "")
            usage = Usage(*view.usage)
            yield RolloutEnded(
                time=self._time,
                task=self._task,
                rollout=number,
                node=view.leaf,
                termination=termination,
                answer=answer,
                why=why,
                turns=view.turns,
                calls=usage.calls,
                prompt=usage.prompt,
                generated=usage.generated,
                tools=usage.tools,
                cut=cut + more,
            )
        if score[1:] != (known[1:] if known is not None else (None, ())):
            yield ScoreEvent(time=self._time, task=self._task, rollout=number, reward=score.reward, parts=parts)

    def _error(self, error: str, source: str, number: int | None) -> ErrorEvent:
        failure = Failure.decode(error)
        message, cut = self._text(failure.message)
        return ErrorEvent(
            time=self._time,
            source=source,
            error=failure.kind,
            message=message,
            task=self._task,
            rollout=number,
            cut=cut,
        )

    def _text(self, text: str) -> tuple[str, int]:
        """A text as far as it is told, and how many characters were cut off."""
        if self._most is None or len(text) <= self._most:
            return text, 0
        return text[: self._most], len(text) - self._most
