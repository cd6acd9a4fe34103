"""The diary of a task: what its rollouts did on the way, and how long it took; no tree has that by node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from trunkline.llm.text import scrub, without_secrets
from trunkline.store.schema import ToolRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from trunkline._core import Tree as Core
    from trunkline.rollout.agent import Kit
    from trunkline.tools.runner import Observation

__all__ = ["UNKNOWN", "Diary", "Leg"]

UNKNOWN = "(unknown)"
"""What a call of a tool that does not exist is counted under: models make names up without end."""

_NAME = 100
"""Characters of a name that are kept."""


class Leg(msgspec.Struct, array_like=True, frozen=True):
    """One thing that a rollout did, for whoever traces it.

    Attributes:
        rollout: The rollout.
        kind: ``chat``, ``tool`` or ``rollout``.
        name: The tool; for the others the agent.
        started: When it began, in microseconds since 1970.
        micros: How long it took, in microseconds.
        model: The model that was asked.
        prompt: Prompt tokens of a turn; -1 where not known, as below.
        generated: Its generated tokens.
        finish: Why the model stopped, or how the rollout ended.
        error: The kind of error that it ended with; empty without one.
        said: What was generated, where content is wanted.
    """

    rollout: int
    kind: str
    name: str
    started: int
    micros: int
    model: str = ""
    prompt: int = -1
    generated: int = -1
    finish: str = ""
    error: str = ""
    said: str = ""


class Diary:
    """Keeps what a task's rollouts did until it is taken along with the tree's next delta.

    Args:
        core: The task's tree.
        traced: ``""``: tool calls alone, as a run file has them. ``spans``: turns and rollouts too. ``content``: what
            was said as well.
    """

    def __init__(self, core: Core, traced: str = "") -> None:
        self._core = core
        self._content = traced == "content"
        self.traced = bool(traced)
        self._tools: list[ToolRow] = []
        self._legs: list[Leg] = []
        self._epoch = time.time_ns() // 1000 - self.now()

    @staticmethod
    def now() -> int:
        """Microseconds of a clock that all processes of a machine share."""
        return time.monotonic_ns() // 1000

    def used(
        self, rollout: int, tools: Collection[str], names: Iterable[str], seen: Sequence[Observation], started: int
    ) -> None:
        """Note tool calls that began together.

        Args:
            rollout: Who made them.
            tools: The tools there are: a model may have made a name up.
            names: Which it called.
            seen: What came of them.
            started: When they began; see :meth:`now`.
        """
        for name, one in zip(names, seen, strict=True):
            known = name if name in tools else UNKNOWN
            self._tools.append(ToolRow(rollout, known[:_NAME], not one.ok, one.micros, started))
            if self.traced:
                said = _safe(one.text) if self._content else ""
                error = "" if one.ok else "tool_error"
                self._legs.append(
                    Leg(rollout, "tool", known[:_NAME], self._epoch + started, one.micros, error=error, said=said)
                )

    def turned(self, rollout: int, kit: Kit, started: int, node: int | None, error: BaseException | None) -> None:
        """Note a turn, for whoever traces it, or why there is none."""
        finish, said, prompt, generated = "", "", -1, -1
        if node is not None:
            facts = self._core.node(node)
            finish, prompt, generated = facts.finish, _known(facts.prompt), _known(facts.generated)
            said = _safe(self._core.message(node).decode()) if self._content else ""
        kind = "" if error is None else type(error).__name__
        leg = Leg(
            rollout,
            "chat",
            kit.agent.name,
            self._epoch + started,
            self.now() - started,
            kit.agent.model,
            prompt,
            generated,
            _safe(finish)[:_NAME],
            kind,
            said,
        )
        self._legs.append(leg)

    def ended(self, rollout: int, name: str, began: float, termination: str, error: str | None) -> None:
        """Note a rollout that is over, for whoever traces it."""
        started = int(began * 1e6)
        finish, failure = termination, "" if error is None else termination
        self._legs.append(
            Leg(rollout, "rollout", name, self._epoch + started, self.now() - started, finish=finish, error=failure)
        )

    def take(self) -> tuple[list[ToolRow], list[Leg]]:
        """Take what was noted since the last time."""
        taken = self._tools, self._legs
        self._tools, self._legs = [], []
        return taken


def _known(figure: int | None) -> int:
    return -1 if figure is None else figure


def _safe(text: str) -> str:
    return without_secrets(scrub(text))
