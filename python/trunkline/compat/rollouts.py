"""One question tried many times, or one conversation played to its end, through somebody's client."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from typing import TYPE_CHECKING, Any

from trunkline.bounds import shown, text, whole
from trunkline.compat.parallel_rollout.conversation import conversation_of
from trunkline.compat.parallel_rollout.options import Settings, as_client, settings
from trunkline.compat.parallel_rollout.results import result_of
from trunkline.compat.parallel_rollout.tools import join
from trunkline.errors import ConfigError, EndpointError
from trunkline.llm import messages as chat
from trunkline.printable import said
from trunkline.rollout.agent import Agent
from trunkline.rollout.strategies.chain import Chain
from trunkline.rollout.strategy import Strategy, check_plan
from trunkline.runtime.plan import Plan
from trunkline.store.reader import RunReader
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.types import JSON, Message

__all__ = ["agentic_loop", "run_parallel_rollouts"]

_TURNS = 30


async def agentic_loop(
    messages: list[Message],
    client: Any,
    model: str,
    tools: Sequence[JSON] | None,
    max_iterations: int = _TURNS,
    **kwargs: Any,
) -> dict[str, Any]:
    """Play one conversation to its end: ask the model, run the tools that it calls, ask again.

    The list that is given is left as it is; the whole conversation is in the result.

    Args:
        messages: The conversation so far, in the OpenAI form; the last one is what the model is to answer. Messages of
            the SDK will do as well as dicts.
        client: An ``AsyncOpenAI`` client, through which every request goes.
        model: The model's name, as its endpoint knows it.
        tools: Tool definitions in the OpenAI form, and objects made with ``@tool``; None for no tools.
        max_iterations: Model turns before it ends as ``max_turns``.
        **kwargs: As for :func:`run_parallel_rollouts`, without ``strategy``.

    Returns:
        The rollout, as :func:`~trunkline.compat.parallel_rollout.results.result_of` describes it. One that failed has
        its reason in ``error``.

    Raises:
        ConfigError: Something in the call cannot be done; the message names it. Nothing was sent.
        EndpointError: The endpoint serves nobody.
    """
    chosen = settings("agentic_loop", kwargs, without=("strategy", "max_iterations"))
    conversation = conversation_of(messages)
    (result,) = await _play(conversation, client, model, tools, Chain(1), max_iterations, chosen)
    return result


async def run_parallel_rollouts(
    question: str, num_rollouts: int, client: Any, model: str, tools: Sequence[JSON] | None, **kwargs: Any
) -> list[dict[str, Any]]:
    """Try a question several times at once.

    It is a run of the library with one task, in this process and this event loop: tries share the tree, tools run in
    threads or on the loop and a failing one is an observation, and a try that fails is a result like the others.

    Args:
        question: What the user asks.
        num_rollouts: How many tries; 0 gives no results and sends nothing.
        client: An ``AsyncOpenAI`` client, through which every request goes. Its retries, timeouts and hooks hold.
        model: The model's name, as its endpoint knows it.
        tools: Tool definitions in the OpenAI form, and objects made with ``@tool``; None for no tools.
        **kwargs: All optional.

            * ``tool_functions``: what implements the definitions, ``{name: function}``, sync (run in threads) or async.
              A call of a definition without one is answered with a sentence that says so, and warned of once.
            * ``system``: a system prompt. ``max_iterations``: model turns of a try, 30. ``max_tool_calls``,
              ``dialect``, ``malformed``: as of :class:`trunkline.Agent`.
            * ``temperature``, ``top_p``, ``max_tokens``, ``stop``, ``presence_penalty``, ``frequency_penalty``,
              ``logprobs``, ``top_logprobs``: as the SDK has them. ``logprobs=True, top_logprobs=5`` gives results a
              confidence.
            * ``tool_choice``, ``parallel_tool_calls``, ``response_format``, ``reasoning_effort``,
              ``max_completion_tokens`` and other fields of a chat completion go into the body as they are, and so does
              what is in ``extra_body``, a dict.
            * ``seed``: seed of all draws; drawn at random when None. ``strategy``: where tries start, in place of
              ``Chain(num_rollouts)``; it must make as many. ``reward`` and ``reference``: a reward function, and the
              accepted answers that it compares with. ``budget``, ``cache``: as of :func:`trunkline.run`.
            * ``out``: path of a run file to keep, for ``trunkline show`` and training; nothing stays on disk without.
            * ``max_concurrency``: requests in flight at once, 64.

    Returns:
        One dict for each try, in their order, as :func:`~trunkline.compat.parallel_rollout.results.result_of` describes
        it. Should the endpoint stop serving anybody half-way, tries that were not done are among them as ``lost``.

    Raises:
        ConfigError: Something in the call cannot be done; the message names it. Nothing was sent.
        EndpointError: The endpoint serves nobody, and no try came to an end.
    """
    chosen = settings("run_parallel_rollouts", kwargs)
    whole("num_rollouts", num_rollouts, 0, 2**20)
    if not text("question", question).strip():
        raise ConfigError("question is empty")
    conversation: list[Message] = [{"role": "user", "content": question}]
    strategy = chosen.run.get("strategy")
    if strategy is not None:
        _check_size(strategy, num_rollouts)
    elif num_rollouts:
        strategy = Chain(num_rollouts)
    turns = chosen.max_iterations or _TURNS
    return await _play(conversation, client, model, tools, strategy, turns, chosen)


async def _play(
    conversation: list[Message],
    client: Any,
    model: str,
    tools: Sequence[JSON] | None,
    strategy: Strategy | None,
    turns: int,
    chosen: Settings,
) -> list[dict[str, Any]]:
    """Run one task, and describe its rollouts; without a strategy everything is checked, and nothing run."""
    whole("max_iterations", turns, 1)
    agent = Agent(
        model=model,
        tools=join(tools, chosen.tool_functions),
        sampling=chosen.sampling,
        max_turns=turns,
        **chosen.agent,
    )
    if agent.system and conversation[0].get("role") in {"system", "developer"}:
        raise ConfigError("messages begin with a system prompt, and system is given as well: leave one of them out")
    llm = as_client(client, chosen.max_concurrency)
    if strategy is None:
        return []
    digest = hashlib.blake2b(b",".join(map(chat.encode, conversation)), digest_size=6).hexdigest()
    task = Task(id=f"question-{digest}", messages=conversation, reference=chosen.reference)
    failure: EndpointError | None = None
    with contextlib.ExitStack() as stack:
        out = chosen.run.get("out")
        if out is None:
            # Not the run's own temporary folder, which goes with the last object that knows it: an error would keep it.
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-")) + "/run"
        # Not arun: where the endpoint gives out half-way, what has grown by then is still wanted.
        plan = Plan(agent, [task], **{**chosen.run, "llm": llm, "strategy": strategy, "workers": 0, "out": out})
        try:
            await plan.execute()
        except EndpointError as error:
            if not plan.path.exists():
                raise
            failure = error
        with RunReader.open(plan.path) as reader:
            rollouts = reader.tree(task.id).rollouts
    if failure is not None and all(rollout.termination is None for rollout in rollouts):
        raise failure
    broken = "" if failure is None else f"{type(failure).__name__}: {said(failure)}"
    return [result_of(rollout, broken) for rollout in rollouts]


def _check_size(strategy: object, tries: int) -> None:
    """Refuse a strategy that makes another number of rollouts than was asked for."""
    if not isinstance(strategy, Strategy):
        raise ConfigError(f"strategy must have rollouts() and start(view), which {shown(strategy)} lacks")
    check_plan(strategy)
    if strategy.rollouts() != tries:
        raise ConfigError(
            f"num_rollouts is {tries}, and {type(strategy).__name__} makes {strategy.rollouts()}: make the two equal"
        )
