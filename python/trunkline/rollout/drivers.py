"""The default program: the tool-calling agent loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from trunkline.scoring.answers import extract_answer
from trunkline.types import Termination

if TYPE_CHECKING:
    from trunkline.agent import Kit
    from trunkline.rollout.rollout import Rollout

__all__ = ["agent_loop"]


async def agent_loop(rollout: Rollout, kit: Kit) -> NoReturn:
    """Ask, run the tools that were called, and again, until the model answers or a limit ends the rollout.

    What is a call and what an answer, the agent's dialect says. A turn that is neither is told so and costs a turn, or
    ends the rollout, as the agent is set. A turn cut off by the token limit ends the rollout as ``max_tokens``: half a
    tool call must not be run, and half an answer must not be scored as one.

    Args:
        rollout: The try to grow.
        kit: The agent that plays it.

    Raises:
        Finished: Always, unless an error ends the rollout first.
    """
    limit = kit.agent.max_tool_calls
    while rollout.turn < kit.agent.max_turns:
        choice = await rollout.ask(kit)
        if choice.finish == "length":
            rollout.finish(None, Termination.MAX_TOKENS)
        turn = kit.speech.read(choice)
        if not turn.calls:
            if turn.answer is not None:
                rollout.finish(extract_answer(turn.answer))
            if kit.agent.void == "stop":
                rollout.finish(None, Termination.FILTERED, "the turn neither calls a tool nor answers")
            rollout.tell(kit, turn.problem)
            continue
        if limit is not None and rollout.tool_calls + len(turn.calls) > limit:
            rollout.finish(None, Termination.TOOL_LIMIT)
        await rollout.use(kit, turn.calls)
    rollout.finish(None, Termination.MAX_TURNS)
