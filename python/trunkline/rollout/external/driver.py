"""Plays the rollouts of a tree by an agent of another framework."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from trunkline._internal.aio import raised_by_user_code
from trunkline._internal.text import describe_error, without_key, without_secrets
from trunkline._internal.validation import short_repr
from trunkline.errors import EnvironmentFailed, InfrastructureError, ProgramError, RolloutError, UsageError
from trunkline.rollout.environments import read_info
from trunkline.rollout.external.process import AgentResult
from trunkline.rollout.external.session import AgentSession
from trunkline.rollout.programs.executor import ProgramExecutor
from trunkline.rollout.programs.replay import Journal
from trunkline.rollout.types import Finished
from trunkline.scoring.answers import extract_answer
from trunkline.scoring.notes import ExternalCalls, note
from trunkline.tools.calls import Origin
from trunkline.tree.records import InfoMark
from trunkline.tree.views import message_text
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from trunkline._core import CoreTree
    from trunkline.rollout.external.process import AgentPlace, AgentRunner
    from trunkline.rollout.external.resources import ExternalProgram
    from trunkline.rollout.rollout import Rollout
    from trunkline.types import Task

__all__ = ["ExternalDriver"]

_GRACE: Final = 5.0
"""Seconds that an agent has after a limit."""


class ExternalDriver:
    """Plays the rollouts of one tree; see :class:`~trunkline.rollout.drivers.ProgramDriver`."""

    def __init__(self, program: ExternalProgram, core: CoreTree, seed: int) -> None:
        self._program = program
        self._journal = Journal(core)
        self._seed = seed
        self._seconds: dict[int, float] = {}

    def opened(self, rollout: int) -> None:
        """Record a new rollout in the step that opened it."""
        self._journal.opened(rollout)

    async def play(self, rollout: Rollout) -> NoReturn:
        """Play a rollout from its position on the tree until :class:`Finished` or an error."""
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
                rollout.facts = InfoMark(rollout.id, facts_of(facts, secret))
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
