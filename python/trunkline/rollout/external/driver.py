"""Plays the rollouts of a tree by an agent of another framework."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NoReturn

from trunkline._internal.aio import raised_by_user_code
from trunkline._internal.text import describe_error, without_secrets
from trunkline._internal.validation import short_repr
from trunkline.errors import InfrastructureError, ProgramError, UsageError
from trunkline.rollout.external.session import AgentSession
from trunkline.rollout.programs.executor import ProgramExecutor
from trunkline.rollout.programs.replay import Journal
from trunkline.rollout.types import Finished
from trunkline.scoring.notes import ExternalCalls, note
from trunkline.tools.calls import Origin
from trunkline.types import Termination

if TYPE_CHECKING:
    from trunkline._core import CoreTree
    from trunkline.rollout.external.resources import ExternalProgram
    from trunkline.rollout.rollout import Rollout

__all__ = ["ExternalDriver"]

_GRACE: Final = 5.0
"""Seconds that an agent has after a limit."""


class ExternalDriver:
    """Plays the rollouts of one tree; see :class:`~trunkline.rollout.drivers.ProgramDriver`."""

    def __init__(self, program: ExternalProgram, core: CoreTree, seed: int) -> None:
        self._program = program
        self._journal = Journal(core)
        self._seed = seed

    def opened(self, rollout: int) -> None:
        """Record a new rollout in the step that opened it."""
        self._journal.opened(rollout)

    async def play(self, rollout: Rollout) -> NoReturn:
        """Play a rollout from its position on the tree until :class:`Finished` or an error."""
        program = self._program
        gateway = await program.gateway()
        session = AgentSession(rollout, ProgramExecutor(rollout), self._journal, program, program.masks)
        if not program.external.repeatable:
            fork = rollout.core.rollout(rollout.id).path
            call = Origin(self._seed, rollout.task.id, rollout.id, fork, 0).call(0)
            await rollout.effects.begin([("the agent", call)])
        rollout.activity.leave()
        try:
            with gateway.opened(session) as path:
                answer = await self._run(rollout, session, gateway.origin + path)
        finally:
            await session.close()
            if (calls := session.calls) != ExternalCalls():
                note(rollout.core, rollout.id, calls)
        if not program.external.repeatable:
            rollout.effects.known(0, [0])
        raise Finished(Termination.ANSWER, answer)

    async def _run(self, rollout: Rollout, session: AgentSession, url: str) -> str | None:
        """Run the agent until it ends, or its rollout does; return its answer."""
        loop = asyncio.get_running_loop()
        agent = loop.create_task(self._agent(rollout, url))
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
            raise short or ProgramError(f"the agent raised {without_secrets(describe_error(error))}") from error
        if short is not None:
            raise short
        answer = agent.result()
        if answer is None and session.failure is not None:
            raise session.failure
        if answer is not None and not isinstance(answer, str):
            raise ProgramError(f"the agent returned {short_repr(answer)}; it must return its answer, a text, or None")
        return answer

    async def _agent(self, rollout: Rollout, url: str) -> Any:
        """Run the agent in this process."""
        from openai import AsyncOpenAI  # noqa: PLC0415 - a second of imports that other runs do not need

        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="trunkline", max_retries=2) as client:
            return await self._program.external.agent(client, rollout.task)
