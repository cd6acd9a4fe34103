"""Plays the rollouts of a tree by an agent of another framework."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from trunkline._core import ROOT
from trunkline._internal.aio import contain_tasks, raised_by_user_code
from trunkline._internal.text import describe_error, without_key, without_secrets
from trunkline._internal.validation import short_repr
from trunkline.errors import (
    EnvironmentFailed,
    ForkRefused,
    InfrastructureError,
    ProgramError,
    ReplayDiverged,
    RolloutError,
    UsageError,
)
from trunkline.rollout.environments import read_info
from trunkline.rollout.external.process import AgentResult
from trunkline.rollout.external.session import AgentSession
from trunkline.rollout.programs.executor import ProgramExecutor
from trunkline.rollout.programs.replay import Journal
from trunkline.rollout.rollout import is_whole
from trunkline.rollout.types import Finished, ending_of
from trunkline.scoring.answers import extract_answer
from trunkline.scoring.notes import ExternalCalls, note
from trunkline.tools.calls import Origin
from trunkline.tree.records import InfoMark
from trunkline.tree.views import message_text
from trunkline.types import UNSCORED, Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from trunkline._core import CoreTree
    from trunkline.rollout.external.process import AgentPlace, AgentRunner
    from trunkline.rollout.external.resources import ExternalProgram
    from trunkline.rollout.rollout import Rollout
    from trunkline.tree.records import Record
    from trunkline.types import Task

__all__ = ["ExternalDriver"]

_GRACE: Final = 5.0
"""Seconds that an agent has after a limit."""

_MOST_BRANCHES: Final = 8
"""Branches in a row, each of which diverged, that one rollout gets."""


class ExternalDriver:
    """Plays the rollouts of one tree; see ``ProgramDriver``."""

    def __init__(self, program: ExternalProgram, core: CoreTree, seed: int) -> None:
        self._program = program
        self._core = core
        self._journal = Journal(core)
        self._seed = seed
        self._seconds: dict[int, float] = {}
        self._equal: dict[int, int] = {}
        self._states: dict[int, list[tuple[int, bool]]] = {}

    def opened(self, rollout: int) -> None:
        """Record a new rollout in the step that opened it."""
        self._journal.opened(rollout)

    def closed(self) -> frozenset[int]:
        """States that cannot be drawn from: the call that followed was not alone in flight, or not answered in full."""
        drawable: dict[int, bool] = {}
        for number in range(self._core.rollouts):
            known = self._states.setdefault(number, [])
            known += map(self._state, self._journal.own(number)[len(known) :])
            for state, can in known:
                drawable.setdefault(state, can)
        return frozenset(state for state, can in drawable.items() if not can)

    def _state(self, record: Record) -> tuple[int, bool]:
        """The state before a call, and whether it can be drawn from. Before any turn nothing is replayed."""
        core = self._core
        state = core.node(record.nodes[0]).parent if record.nodes else ROOT
        return (state, self._drawable(record)) if core.node(state).turns else (ROOT, True)

    def _drawable(self, record: Record) -> bool:
        return record.alone and (not record.nodes or is_whole(self._core.node(record.nodes[-1]).finish))

    def branches(self, first: int) -> frozenset[int]:
        """The branches among the rollouts from ``first`` on."""
        self._journal.read()
        return frozenset(number for number in self._journal.branches if number >= first)

    def diverged(self, first: int) -> list[int]:
        """The rollouts from ``first`` on that diverged, and that no branch continues yet."""
        self._journal.read()
        continued, ended = set(self._journal.branches.values()), Termination.FILTERED
        found = [number for number in sorted(self._journal.diverged) if number >= first and number not in continued]
        return [
            number for number in found if self._core.rollout(number).termination == ended and self._may_branch(number)
        ]

    def _may_branch(self, number: int) -> bool:
        """Whether a rollout that diverged is continued: after so many branches in a row it is not."""
        row = 0
        while (number := self._journal.branches.get(number, -1)) >= 0:
            row += 1
        return row < _MOST_BRANCHES

    def branch(self, of: int, end: int) -> int:
        """Open the rollout that continues one that diverged; ``end`` is the last node of the prompt."""
        number = self._journal.branch(of, self._journal.diverged[of], end)
        note(self._core, number, ExternalCalls(branched=1))
        return number

    async def play(self, rollout: Rollout) -> NoReturn:
        """Play a rollout from its position on the tree until ``Finished`` or an error."""
        drawn = self._journal.drawn(rollout.id)
        if drawn is not None and not self._drawable(drawn):
            why = "other calls were in flight at this fork point, or its call was not answered in full"
            raise ForkRefused(f"{why}; strategies find those that can be drawn in view.fork_points()")
        try:
            await self._play(rollout)
        except (Finished, RolloutError) as end:
            kept = self._uncounted(rollout.id, end)
            if kept is None:
                raise
            raise kept from None

    def _uncounted(self, number: int, end: Finished | RolloutError) -> Finished | None:
        """How a rollout ends that diverged, or that is a branch and does not count; None for others."""
        action, of = self._program.external.on_divergence, self._journal.branches.get(number)
        if isinstance(end, ReplayDiverged) and action != "fail":
            self._core.mark(msgspec.json.encode({"diverged": (number, self._equal[number])}).decode())
            goes_on = "a branch goes on from there" if self._may_branch(number) else "so many branches of it did before"
            return Finished(Termination.FILTERED, None, f"{end}; {goes_on}")
        ending = ending_of(end)
        if of is None or action != "branch" or ending.termination in UNSCORED:
            return None
        why = f"not counted: it is the branch of rollout {of}, which diverged from its record"
        return Finished(Termination.FILTERED, ending.answer, f"{why}; it ended as {ending.termination}")

    async def _play(self, rollout: Rollout) -> NoReturn:
        program = self._program
        if not program.external.repeatable:
            fork = rollout.core.rollout(rollout.id).path
            call = Origin(self._seed, rollout.task.id, rollout.id, fork, 0).call(0)
            await rollout.effects.begin([("the agent", call)])
        rollout.activity.leave()
        if program.runner is None:
            answer = await self._play_function(rollout)
        else:
            answer = await self._play_process(rollout, program.runner)
        raise Finished(Termination.ANSWER, answer)

    async def _play_function(self, rollout: Rollout) -> str | None:
        """Run an agent that is a function of this process."""

        async def run(url: str) -> Any:
            own, client = asyncio.current_task(), self._program.client(f"{url}/v1")
            contain_tasks()
            try:
                return await self._program.external.agent(client, rollout.task)
            except (SystemExit, KeyboardInterrupt, GeneratorExit) as problem:
                # No task can end with it: the event loop would.
                if not raised_by_user_code(problem, own):
                    raise
                raise ProgramError(f"the agent raised {describe_error(problem)}") from None

        return await self._serve(rollout, run)

    async def _play_process(self, rollout: Rollout, runner: AgentRunner) -> str | None:
        """Run an agent that is a process."""
        place = await runner.open()
        try:

            async def run(url: str) -> str | AgentResult:
                result = await runner.run(place, question_of(rollout.task), url)
                self._seconds[rollout.id] = result.cpu
                if not result.ok:
                    said = f": {result.err}" if result.err else ""
                    raise ProgramError(without_secrets(f"the agent's process {result.how}{said}"))
                return result if result.answer is None else result.answer

            return await self._serve(rollout, run, place)
        finally:
            await runner.close(place)

    async def _serve(
        self, rollout: Rollout, run: Callable[[str], Coroutine[Any, Any, Any]], place: AgentPlace | None = None
    ) -> str | None:
        """Serve the agent that ``run`` starts with its base URL, and return its answer."""
        program, secret = self._program, secrets.token_urlsafe(24)
        gateway = await program.gateway()
        masks, listener = ((), None) if place is None else (place.masks, place.listener)
        covered = program.masks.with_texts([*masks, secret, gateway.origin])
        session = AgentSession(rollout, ProgramExecutor(rollout), self._journal, program, covered)

        async def hiding(work: Coroutine[Any, Any, Any]) -> Any:
            answer = await work
            if isinstance(answer, tuple) and len(answer) == 2:
                answer, facts = answer
                rollout.facts = None if facts is None else InfoMark(rollout.id, facts_of(facts, secret))
            return without_key(answer, secret) if isinstance(answer, str) else answer

        try:
            async with gateway.listening(listener) as origin:
                with gateway.serving(secret, session, origin) as url:
                    return await self._run(rollout, session, hiding(run(url)))
        except ProgramError as problem:
            if secret not in str(problem):
                raise
            raise ProgramError(without_key(str(problem), secret)) from None
        finally:
            await session.close()
            self._equal[rollout.id] = session.equal
            calls = msgspec.structs.replace(session.calls, seconds=self._seconds.pop(rollout.id, 0.0))
            if calls != ExternalCalls():
                note(rollout.core, rollout.id, calls)

    async def _run(self, rollout: Rollout, session: AgentSession, work: Coroutine[Any, Any, Any]) -> str | None:
        """Run the agent until it ends, or its rollout does; return its answer."""
        agent = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait((agent, session.ended), return_when=asyncio.FIRST_COMPLETED)
            if session.ended.done():
                session.stop(session.ended.result())
                if isinstance(session.ended.result(), Finished):
                    await asyncio.wait((agent,), timeout=_GRACE)
        finally:
            if not agent.done():
                agent.cancel()
                await asyncio.wait((agent,))
        if rollout.side_effects is not None:
            rollout.effects.known(0, [0])  # it has ended, and not by a cut
        if session.ended.done():
            end = session.ended.result()
            answer = None if agent.cancelled() or agent.exception() is not None else agent.result()
            if isinstance(end, Finished) and end.answer is None and isinstance(answer, str):
                raise Finished(end.termination, answer, end.reason)
            raise end
        return self._answer(session, agent)

    def _answer(self, session: AgentSession, agent: asyncio.Task[Any]) -> str | None:
        """The answer of an agent that has ended by itself."""
        short = session.unasked()
        if agent.cancelled():
            raise ProgramError("the agent was cancelled from within")
        error = agent.exception()
        if error is not None:
            if isinstance(error, InfrastructureError | UsageError) or not raised_by_user_code(error, agent):
                raise error
            if session.failure is not None:
                raise session.failure
            if isinstance(error, RolloutError):
                raise short or error
            raise short or ProgramError(f"the agent raised {without_secrets(describe_error(error))}") from error
        if short is not None:
            raise short
        answer = agent.result()
        if isinstance(answer, AgentResult):
            answer = extract_answer(session.last)
        if answer is None and session.failure is not None:
            raise session.failure
        if answer is not None and not isinstance(answer, str):
            raise ProgramError(f"the agent returned {short_repr(answer)}; it must return its answer, a text, or None")
        return answer


def facts_of(given: object, secret: str) -> dict[str, Any]:
    """Return the facts that an agent returned beside its answer, without the secret of its base URL."""
    try:
        facts = read_info(given, "the agent's facts are")
    except EnvironmentFailed as problem:
        raise ProgramError(f"{problem}; it must return (answer, facts)") from None
    kept: dict[str, Any] = msgspec.json.decode(without_key(msgspec.json.encode(facts).decode(), secret))
    return kept


def question_of(task: Task) -> str:
    """Return the question of a task: the texts of its messages."""
    return "\n\n".join(message_text(message) for message in task.messages)
