"""One question tried many times, or one conversation played to its end, through the caller's client."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline._internal.text import describe_error, scrub
from trunkline._internal.validation import check_int, check_text, short_repr, type_phrase
from trunkline.agent import Agent
from trunkline.compat.aggregate import as_client
from trunkline.errors import ConfigError, EndpointError
from trunkline.llm import messages as chat
from trunkline.llm.request import Sampling
from trunkline.runner.plan import PreparedRun
from trunkline.scoring.confidence import entropy, logprob
from trunkline.scoring.reports.extractive import extract
from trunkline.store.reader import RunReader
from trunkline.strategies.base import Strategy, check_plan
from trunkline.strategies.chain import Chain
from trunkline.tools.openai_definition import tools_of
from trunkline.types import Task, Termination, accepted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline._internal.text import JSON
    from trunkline.tree.views import Trajectory
    from trunkline.types import Message


_TURNS: Final = 30
_SAMPLING: Final = tuple(name for name in Sampling.__struct_fields__ if name != "extra")
_BODY: Final = (
    "logit_bias max_completion_tokens metadata modalities parallel_tool_calls prediction prompt_cache_key "
    "reasoning_effort response_format safety_identifier service_tier store tool_choice user verbosity "
    "web_search_options"
)
"""Further fields of a chat completion, which go into its body as they are."""

_AGENT: Final = ("system", "max_tool_calls", "dialect", "malformed")
_RUN: Final = ("seed", "strategy", "reward", "out", "budget", "cache")
_OWN: Final = ("max_iterations", "tool_functions", "max_concurrency", "reference", "extra_body")

_INSTEAD: Final = {
    "n": "num_rollouts says how many tries there are",
    "stream": "replies are read whole",
    "stream_options": "replies are read whole",
    "functions": "give tools",
    "function_call": "give tool_choice",
    "messages": "they grow with the rollout",
    "timeout": "set it on the client: client.with_options(timeout=...)",
    "extra_headers": "set them on the client: client.with_options(default_headers=...)",
    "extra_query": "set it on the client: client.with_options(default_query=...)",
}

_AS_IT_IS: Final = {"stream": False, "n": 1}
"""Values of these fields that the library sends itself; None is left out as well."""


def _checked(function: str, given: Mapping[str, Any], without: str = "") -> dict[str, Any]:
    """Return the keyword arguments of a function that need an action; ConfigError for unknown ones and ``without``."""
    known = [name for name in (*_SAMPLING, *_BODY.split(), *_AGENT, *_RUN, *_OWN) if name != without]
    given = _asking(given)
    for name in given:
        if name in _INSTEAD:
            raise ConfigError(f"{function} does not take {name}: {_INSTEAD[name]}")
        if name not in known:
            raise ConfigError(
                f"{function} has no option {short_repr(name)}; it has {', '.join(sorted(known))}; "
                "further fields of the request go into extra_body"
            )
    return given


def _asking(given: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out fields that the library writes itself, where they ask for what it writes."""
    return {
        name: value
        for name, value in given.items()
        if name not in _INSTEAD or (value is not None and value is not _AS_IT_IS.get(name))
    }


def _sampling(given: Mapping[str, Any]) -> Sampling:
    body = given.get("extra_body")
    if body is not None and not isinstance(body, Mapping):
        raise ConfigError(f"extra_body must be a dict of body fields, not {type_phrase(body)}")
    # As with the SDK, what stands in extra_body is the last word on a field.
    fields = {name: given[name] for name in (*_SAMPLING, *_BODY.split()) if given.get(name) is not None}
    fields |= _asking(body or {})
    known = {name: fields.pop(name) for name in _SAMPLING if name in fields}
    stop = known.get("stop")
    if isinstance(stop, str | list):
        known["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    return Sampling(**known, extra=fields)


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
    read = scrub(read)  # a copy, in which every text can be sent and stored
    chat.rename_calls(read)
    return read


def result_of(rollout: Trajectory, broken: str = "") -> dict[str, Any]:
    """Describe a rollout; ``broken`` says why its run ended before it did.

    Returns:
        A dict of plain JSON data:

        * ``messages``: the conversation from the first prompt to the end, in the OpenAI form.
        * ``answer``: the final answer, or None; ``final_answer`` is the same.
        * ``termination``: why it ended, a value of ``trunkline.Termination``; ``answer`` where it has one.
        * ``error``: what went wrong, one printable line, or None.
        * ``usage``: what its own calls cost, the fields of ``trunkline.runs.Usage``.
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
        **kwargs: As for ``run_parallel_rollouts``, without ``strategy``. ``trajectory_id``: a text or a whole
            number that names the conversation. It is the id of the task in a run file, and so part of all seeds: with
            one ``seed``, conversations of other ids draw otherwise.

    Returns:
        The rollout, as ``result_of`` describes it, with ``trajectory_id`` where it was
        given. One that failed has its reason in ``error``.

    Raises:
        ConfigError: Something in the call cannot be done; the message names it. Nothing was sent.
        EndpointError: The endpoint refuses every request.
    """
    name = kwargs.pop("trajectory_id", None)
    if isinstance(name, str) and name.strip():
        name = scrub(name)
    elif name is not None and (not isinstance(name, int) or isinstance(name, bool) or abs(name) >= 2**63):
        raise ConfigError(f"trajectory_id must be a text or a whole number of 64 bits, not {short_repr(name)}")
    given = _checked("agentic_loop", kwargs, "strategy") | {"strategy": Chain(1), "max_iterations": max_iterations}
    (result,) = await _play(given, conversation_of(messages), client, model, tools, name)
    return result if name is None else result | {"trajectory_id": name}


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
              ``dialect``, ``malformed``: as of ``trunkline.Agent``.
            * ``temperature``, ``top_p``, ``max_tokens``, ``stop``, ``presence_penalty``, ``frequency_penalty``,
              ``logprobs``, ``top_logprobs``: as the SDK has them. ``logprobs=True, top_logprobs=5`` gives results a
              confidence.
            * ``tool_choice``, ``parallel_tool_calls``, ``response_format``, ``reasoning_effort``,
              ``max_completion_tokens`` and other fields of a chat completion go into the body as they are, and so does
              what is in ``extra_body``, a dict.
            * ``seed``: seed of all draws; drawn at random when None. ``strategy``: where tries start, in place of
              ``Chain(num_rollouts)``; it must make as many. ``reward`` and ``reference``: a reward function, and the
              reference answers that it compares with. ``budget``, ``cache``: as of ``trunkline.run``.
            * ``out``: path of a run file to keep, for ``trunkline show`` and training; nothing stays on disk without.
            * ``max_concurrency``: requests in flight at once, 64.

    Returns:
        One dict for each try, in their order, as ``result_of`` describes
        it. Should the endpoint begin to refuse every request, unfinished tries are among them as ``lost``.

    Raises:
        ConfigError: Something in the call cannot be done; the message names it. Nothing was sent.
        EndpointError: The endpoint refuses every request, and no try was finished.
    """
    given = _checked("run_parallel_rollouts", kwargs)
    check_int("num_rollouts", num_rollouts, 0, 2**20)
    if not check_text("question", question).strip():
        raise ConfigError("question is empty")
    if given.get("max_iterations") is None:
        given["max_iterations"] = _TURNS
    strategy = given.get("strategy")
    if strategy is None:
        given["strategy"] = Chain(num_rollouts) if num_rollouts else None
    elif not isinstance(strategy, Strategy):
        raise ConfigError(f"strategy must have rollouts() and start(view), which {short_repr(strategy)} lacks")
    else:
        check_plan(strategy)
        if strategy.rollouts() != num_rollouts:
            raise ConfigError(
                f"num_rollouts is {num_rollouts}, and {type(strategy).__name__} makes {strategy.rollouts()}: "
                "make the two equal"
            )
    return await _play(given, [{"role": "user", "content": question}], client, model, tools)


async def _play(
    given: Mapping[str, Any],
    conversation: list[Message],
    client: Any,
    model: str,
    tools: Sequence[JSON] | None,
    name: str | int | None = None,
) -> list[dict[str, Any]]:
    """Run one task and describe its rollouts; without a strategy only check the call."""
    functions = given.get("tool_functions")
    if functions is not None and not isinstance(functions, Mapping):
        raise ConfigError(f"tool_functions must be a dict of functions by name, not {type_phrase(functions)}")
    agent = Agent(
        model=model,
        tools=tools_of(tools, functions or {}),
        sampling=_sampling(given),
        max_turns=check_int("max_iterations", given["max_iterations"], 1),
        **{name: given[name] for name in _AGENT if name in given},
    )
    if agent.system and conversation[0].get("role") in {"system", "developer"}:
        raise ConfigError("messages begin with a system prompt, and system is given as well: leave one of them out")
    llm = as_client(client, given.get("max_concurrency"))
    reference = accepted("reference", given.get("reference"))
    if given["strategy"] is None:
        return []
    if name is None:
        digest = hashlib.blake2b(b",".join(map(chat.encode, conversation)), digest_size=6).hexdigest()
        name = f"question-{digest}"
    task = Task(id=str(name), messages=conversation, reference=reference)
    failure: EndpointError | None = None
    # Not the run's own temporary folder, which is removed with its last reference: an error would keep it.
    with tempfile.TemporaryDirectory(prefix="trunkline-") as folder:
        options = {"out": f"{folder}/run"} | {name: given[name] for name in _RUN if given.get(name) is not None}
        # Not arun: where the endpoint fails half-way, the rollouts that have ended are still returned.
        plan = PreparedRun(agent, [task], llm=llm, workers=0, **options)
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
    broken = "" if failure is None else describe_error(failure)
    return [result_of(rollout, broken) for rollout in rollouts]
