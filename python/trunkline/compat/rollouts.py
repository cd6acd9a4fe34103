"""One question tried many times, or one conversation played to its end, through the caller's client."""

from __future__ import annotations

import contextlib
import hashlib
import math
import tempfile
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._internal.text import format_error, scrub
from trunkline._internal.validation import check_int, check_text, short_repr, type_phrase
from trunkline.agent import Agent
from trunkline.compat.aggregate import Settings, as_client, settings
from trunkline.errors import ConfigError, EndpointError
from trunkline.llm import messages as chat
from trunkline.runner.plan import PreparedRun
from trunkline.scoring.confidence import entropy, logprob
from trunkline.scoring.reports.extractive import extract
from trunkline.store.reader import RunReader
from trunkline.strategies.base import Strategy, check_plan
from trunkline.strategies.chain import Chain
from trunkline.tools.openai_definition import tools_of
from trunkline.types import Task, Termination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._internal.text import JSON
    from trunkline.tree.views import Trajectory
    from trunkline.types import Message


def conversation_of(given: object) -> list[Message]:
    """Return messages or a question as a checked copy in the OpenAI form, with fresh ids for earlier calls."""
    if isinstance(given, str):
        if not given.strip():
            raise ConfigError("messages is an empty text: give a question, or a list of chat messages")
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(
            f"messages must be a question or a list of at least one chat message, not {type_phrase(given)}"
        )
    read: list[Message] = []
    for message in given:
        dump = getattr(message, "model_dump", None)
        read.append(dump(exclude_none=True) if callable(dump) else message)
    chat.check(read)
    # A copy, in which every text can be sent and stored.
    read = scrub(read)
    chat.rename_calls(read)
    return read


def result_of(rollout: Trajectory, broken: str = "") -> dict[str, Any]:
    """Describe a rollout.

    Args:
        rollout: The rollout.
        broken: Why its run ended before it did, if that is so.

    Returns:
        A dict of plain JSON data:

        * ``messages``: the conversation from the first prompt to the end, in the OpenAI form.
        * ``answer``: the final answer, or None; ``final_answer`` is the same.
        * ``termination``: why it ended, a value of :class:`trunkline.Termination`; ``answer`` where it has one.
        * ``error``: what went wrong, one printable line, or None.
        * ``usage``: what its own calls cost, the fields of :class:`trunkline.Usage`.
        * ``confidence``: how sure the model was of the tokens of its last turn, from 0 to 1: the geometric mean of
          their probabilities, or where the server gives no token ids, one over their perplexity by the likeliest
          tokens. None where it gave neither; ask with ``logprobs=True`` and ``top_logprobs`` of at least 2.
        * ``compressed_reasoning``: how it got there in a few lines, without asking a model.
        * ``nodes``: ids of its nodes in the tree, from the first prompt to the end; those that rollouts share are in
          the results of each.
        * ``rollout``: its number among the results.
        * ``reward``: its reward, or None where it is unscored.
    """
    failure, termination = rollout.error, rollout.termination
    # Without token ids no log-probability is kept of a token, and the entropy is what is left of them.
    sure = logprob(rollout)
    confidence = entropy(rollout) if math.isnan(sure) else sure
    error = None if failure is None else ": ".join(filter(None, (failure.kind, failure.message)))
    messages, answer = rollout.messages, rollout.answer
    return {
        "messages": messages,
        "answer": answer,
        "final_answer": answer,
        "termination": (Termination.LOST if termination is None else termination).value,
        "error": broken or None if termination is None else error,
        "usage": msgspec.structs.asdict(rollout.usage),
        "confidence": _number(confidence),
        "compressed_reasoning": extract(messages, answer=answer),
        "nodes": rollout.tree.core.path(rollout.leaf.id),
        "rollout": rollout.id,
        "reward": _number(rollout.reward),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


_TURNS = 30


async def agentic_loop(
    messages: list[Message] | str,
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
            the SDK will do as well as dicts, and a question as text.
        client: An ``AsyncOpenAI`` client, through which every request goes.
        model: The model's name, as its endpoint knows it.
        tools: Tool definitions in the OpenAI form, and objects made with ``@tool``; None for no tools.
        max_iterations: Model turns before it ends as ``max_turns``.
        **kwargs: As for :func:`run_parallel_rollouts`, without ``strategy``. ``trajectory_id``: a text or a whole
            number that names the conversation. It is the id of the task in a run file, and so part of all seeds: with
            one ``seed``, conversations of other ids draw otherwise.

    Returns:
        The rollout, as :func:`~trunkline.compat.rollouts.result_of` describes it, with ``trajectory_id`` where it was
        given. One that failed has its reason in ``error``.

    Raises:
        ConfigError: Something in the call cannot be done; the message names it. Nothing was sent.
        EndpointError: The endpoint refuses every request.
    """
    name = _name(kwargs.pop("trajectory_id", None))
    chosen = settings("agentic_loop", kwargs, without=("strategy", "max_iterations"))
    conversation = conversation_of(messages)
    (result,) = await _play(conversation, client, model, tools, Chain(1), max_iterations, chosen, name)
    return result if name is None else result | {"trajectory_id": name}


def _name(given: object) -> str | int | None:
    """Return the name of a conversation, a text or whole number, if it has one."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and abs(given) < 2**63):
        return given
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"trajectory_id must be a text or a whole number of 64 bits, not {short_repr(given)}")
    return scrub(given)


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
        One dict for each try, in their order, as :func:`~trunkline.compat.rollouts.result_of` describes
        it. Should the endpoint begin to refuse every request, unfinished tries are among them as ``lost``.

    Raises:
        ConfigError: Something in the call cannot be done; the message names it. Nothing was sent.
        EndpointError: The endpoint refuses every request, and no try was finished.
    """
    chosen = settings("run_parallel_rollouts", kwargs)
    check_int("num_rollouts", num_rollouts, 0, 2**20)
    if not check_text("question", question).strip():
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
    name: str | int | None = None,
) -> list[dict[str, Any]]:
    """Run one task and describe its rollouts; without a strategy only check the call."""
    check_int("max_iterations", turns, 1)
    agent = Agent(
        model=model,
        tools=tools_of(tools, chosen.tool_functions),
        sampling=chosen.sampling,
        max_turns=turns,
        **chosen.agent,
    )
    if agent.system and conversation[0].get("role") in {"system", "developer"}:
        raise ConfigError("messages begin with a system prompt, and system is given as well: leave one of them out")
    llm = as_client(client, chosen.max_concurrency)
    if strategy is None:
        return []
    if name is None:
        digest = hashlib.blake2b(b",".join(map(chat.encode, conversation)), digest_size=6).hexdigest()
        name = f"question-{digest}"
    task = Task(id=str(name), messages=conversation, reference=chosen.reference)
    failure: EndpointError | None = None
    with contextlib.ExitStack() as stack:
        out = chosen.run.get("out")
        if out is None:
            # Not the run's own temporary folder, which goes with the last object that knows it: an error would keep it.
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-")) + "/run"
        # Not arun: where the endpoint gives out half-way, what has grown by then is still wanted.
        plan = PreparedRun(agent, [task], **{**chosen.run, "llm": llm, "strategy": strategy, "workers": 0, "out": out})
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
    broken = "" if failure is None else f"{type(failure).__name__}: {format_error(failure)}"
    return [result_of(rollout, broken) for rollout in rollouts]


def _check_size(strategy: object, tries: int) -> None:
    if not isinstance(strategy, Strategy):
        raise ConfigError(f"strategy must have rollouts() and start(view), which {short_repr(strategy)} lacks")
    check_plan(strategy)
    if strategy.rollouts() != tries:
        raise ConfigError(
            f"num_rollouts is {tries}, and {type(strategy).__name__} makes {strategy.rollouts()}: make the two equal"
        )
