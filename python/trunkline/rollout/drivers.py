"""The agent loop, and the host of user programs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from trunkline._internal.aio import raised_by_user_code
from trunkline._internal.text import describe_error
from trunkline._internal.validation import short_repr
from trunkline.errors import ProgramError, UsageError
from trunkline.llm.types import CUT_OFF
from trunkline.rollout.programs.context import ProgramContext
from trunkline.rollout.programs.environment import ProgramEnvironment
from trunkline.rollout.programs.executor import ProgramExecutor
from trunkline.rollout.programs.loop import misuse
from trunkline.rollout.programs.replay import Journal
from trunkline.rollout.types import Finished
from trunkline.scoring.answers import extract_answer
from trunkline.types import Termination

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from trunkline._core import CoreTree
    from trunkline.agent import CompiledAgent
    from trunkline.llm.types import ReplyChoice, ToolCall
    from trunkline.rollout.environments import EnvironmentManager
    from trunkline.rollout.programs.resources import Program
    from trunkline.rollout.rollout import Rollout


async def agent_loop(rollout: Rollout, compiled: CompiledAgent) -> NoReturn:
    """Ask the model and run its tool calls, until an answer or a limit raises ``Finished``."""
    while rollout.turn < compiled.agent.max_turns:
        wanted = wanted_calls(rollout, compiled, await rollout.ask(compiled))
        if isinstance(wanted, Finished):
            raise wanted
        if wanted:
            await rollout.use(compiled, wanted)
        del wanted  # the tree has them, and the next reply may take long
    raise Finished(Termination.MAX_TURNS)


def wanted_calls(rollout: Rollout, compiled: CompiledAgent, choice: ReplyChoice) -> Sequence[ToolCall] | Finished:
    """Return the tool calls of a turn, none if the model is told that it is void, or how it ends the rollout."""
    finish, agent = choice.finish, compiled.agent
    if finish in CUT_OFF:
        why = "" if finish == "length" else f"the server cut the reply off: finish reason {finish!r}"
        return Finished(Termination.MAX_TOKENS, None, why)
    turn = compiled.dialect.read(choice)
    if turn.calls:
        if agent.max_tool_calls is not None and rollout.tool_calls + len(turn.calls) > agent.max_tool_calls:
            return Finished(Termination.TOOL_LIMIT)
        return turn.calls
    if turn.answer is not None:
        return Finished(Termination.ANSWER, extract_answer(turn.answer))
    if agent.on_void_turn == "stop":
        return Finished(Termination.FILTERED, None, "the turn neither calls a tool nor answers")
    rollout.tell(compiled, turn.problem)
    return ()


class ProgramFunction(Protocol):
    """What a user writes: a coroutine over one rollout."""

    def __call__(self, rollout: ProgramContext, /) -> Awaitable[str | None]:
        """Play a rollout to its end, and return its answer; None where it has none."""
        ...


class ProgramDriver:
    """Plays a user's program on the rollouts of one tree."""

    def __init__(self, program: Program, core: CoreTree, seed: int) -> None:
        self._program = program
        self._journal = Journal(core)
        self._seed = seed

    def opened(self, rollout: int) -> None:
        """Record a new rollout in the step that opened it."""
        self._journal.opened(rollout)

    def environment(self, manager: EnvironmentManager, rollout: Rollout) -> ProgramEnvironment:
        """Return the environment of a rollout that begins in this round."""
        return ProgramEnvironment(manager, rollout, self._journal.of)

    async def play(self, rollout: Rollout) -> None:
        """Play a rollout from its position on the tree until ``Finished`` or an error."""
        executor = ProgramExecutor(rollout)
        play = ProgramContext(rollout, executor, self._journal, self._program, self._seed)
        try:
            try:
                answer = await play.play(self._run(play))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - it, or what it stands for, is raised
                raise play.over() or error from None
            finally:
                await play.close()
            if play.over() is not None:
                raise play.over() or asyncio.CancelledError
            if answer is not None and not isinstance(answer, str):
                raise ProgramError(
                    f"the program returned {short_repr(answer)}; it must return its answer, a text, or None"
                )
            play.finish(answer)
        finally:
            play.release()

    async def _run(self, play: ProgramContext) -> Any:
        """Run the program; its mistakes become errors of this rollout."""
        own = asyncio.current_task()
        try:
            return await self._program.function(play)
        except UsageError as problem:
            raise ProgramError(describe_error(problem)) from problem
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            if (refusal := misuse(problem)) is not None:
                raise refusal from None
            raise
        except BaseException as problem:
            # No task can end with it: the event loop would.
            if not raised_by_user_code(problem, own):
                raise
            raise ProgramError(f"the program raised {describe_error(problem)}") from None
        finally:
            del own  # its error refers to this frame
