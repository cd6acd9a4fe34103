"""BatchLLM: dynamic batching over generate(list)."""

from __future__ import annotations

import asyncio
import inspect
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from trunkline._core import BatchQueue
from trunkline._internal.aio import PerLoopSemaphore
from trunkline._internal.text import format_error, printable, without_secrets
from trunkline._internal.validation import check_bool, check_float, check_int, check_that, short_repr
from trunkline.errors import (
    BadRequest,
    ContentFiltered,
    ContextTooLong,
    InfrastructureError,
    LLMError,
    TrunklineError,
    UsageError,
)
from trunkline.llm.batch.activity import Activity
from trunkline.llm.batch.completion import ENDPOINT, PendingPrompt, RequestTime, completions, prompts, reply_of
from trunkline.llm.batch.turn_sender import BatchTurnSender
from trunkline.llm.pricing import one_price
from trunkline.llm.receiver import RequestLabels
from trunkline.llm.token_ids.base import engine_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import TurnEngine
    from trunkline.llm.batch.completion import Prompt
    from trunkline.llm.pricing import Price
    from trunkline.llm.receiver import FirstAttempt, TurnReceiver
    from trunkline.llm.token_ids.base import TokenMode
    from trunkline.llm.types import Reply, Request


_QUIET: Final = 8  # turns of the event loop without a new request or reply after which no rollout is still about to ask
_LEAVE_WITHIN: Final = 2.0  # seconds that a cancelled engine has to end
_WORDS: Final = 1000  # characters that are kept of what an engine's exception says
_KINDS: Final = (BadRequest, ContextTooLong, ContentFiltered, LLMError)


class Batcher:
    """A batch engine as the LLM of one event loop; the core's queue decides when a batch leaves, and what is in it."""

    def __init__(self, settings: BatchLLM) -> None:
        self.activity = Activity(self._stir, core=settings.core_masks)
        self.siblings = settings.supports_n
        self.max_concurrency = settings.max_concurrency
        self.largest = settings.max_batch if settings.supports_n else 1
        self.engine_name = settings.engine.name
        self._settings = settings
        self._engine = settings.engine
        self._waiting: BatchQueue[PendingPrompt] = BatchQueue(
            settings.max_batch, settings.max_wait, settings.tool_wait, settings.fuse_calls, settings.regroup
        )
        self._changes = 0
        self.expects = False
        self._calls: dict[asyncio.Task[None], set[PendingPrompt]] = {}
        self._looking = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"Batcher({self._settings!r})"

    async def complete(self, request: Request) -> Reply:
        if self._closed:
            raise LLMError(f"{self._engine.name} is closed")
        start, told = time.monotonic(), asyncio.Event()
        labels = RequestLabels(request.model, request.role, request.step, request.asked)
        parts = [self.put(prompt, labels, told.set) for prompt in prompts(request, self.largest)]
        try:
            while any(part.outcomes is None for part in parts):
                told.clear()
                await told.wait()
        except asyncio.CancelledError:
            self.drop(parts)
            raise
        sent = max(part.sent for part in parts)
        taken = RequestTime(int((time.monotonic() - start) * 1e6), int(max(0.0, sent - start) * 1e6))
        try:
            return reply_of(request, [part.outcomes or [] for part in parts], taken, self._engine.name)
        except LLMError as error:
            error.endpoint = ENDPOINT
            raise

    def sender(self, engine: TurnEngine[Any], model: int, receiver: TurnReceiver) -> BatchTurnSender:
        """Let requests of an engine's model wait for batches here."""
        return BatchTurnSender(engine, model, self, receiver)

    async def resume(self, request: Request, attempt: FirstAttempt) -> Reply:
        """Complete a request that waited in a turn engine; raises what a call of the engine brought for it."""
        if attempt.error is None:
            return await self.complete(request)
        if isinstance(attempt.error, LLMError):
            attempt.error.endpoint = ENDPOINT
        raise attempt.error

    def put(self, prompt: Prompt, labels: RequestLabels, told: Callable[[], None]) -> PendingPrompt:
        """Let a prompt wait for its batch; ``told`` is called when its outcomes are there."""
        part = PendingPrompt(prompt, told)
        if self._closed:
            part.fail(LLMError(f"{self._engine.name} is closed"))
            return part
        step, now = (labels.step, labels.asked), asyncio.get_running_loop().time()
        part.number = self._waiting.add(part, labels.model, labels.role, step, prompt.n, now)
        self._changes += 1
        if not self._looking:
            self._stir()
        return part

    async def close(self) -> None:
        """Fail waiting prompts and cancel the engine's calls. May be called more than once."""
        self._closed = True
        self._set_timer(None)
        for part in self._waiting.clear():
            part.fail(LLMError(f"{self._engine.name} is closed"))
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=_LEAVE_WITHIN)

    def _stir(self) -> None:
        """Check for a due batch once everything that is ready to run has run."""
        if not self._looking and not self._closed and self._waiting:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._settle, _QUIET, self._changes)

    def _settle(self, quiet: int, changes: int) -> None:
        """Let the loop turn until no new request arrives: rollouts that one reply woke ask one after the other."""
        if changes != self._changes or self.expects:
            quiet = _QUIET
        if quiet and not self._waiting.full:
            asyncio.get_running_loop().call_soon(self._settle, quiet - 1, self._changes)
            return
        self._looking = False
        self._look()

    def _look(self) -> None:
        """Send due batches, and set a timer for the next."""
        self._set_timer(None)
        if self._closed:
            return
        if self.expects:
            self._stir()
            return
        loop = asyncio.get_running_loop()
        free = self._settings.calls - len(self._calls)
        batches, due = self._waiting.next(loop.time(), free, self.activity.running, self.activity.away)
        for batch in batches:
            self._send(batch, loop)
        if due is not None:
            self._set_timer(loop.call_at(due, self._look))

    def _send(self, batch: list[PendingPrompt], loop: asyncio.AbstractEventLoop) -> None:
        call = loop.create_task(self._run(batch))
        sent = time.monotonic()
        for part in batch:
            part.call, part.sent = call, sent
        self._calls[call] = set(batch)
        call.add_done_callback(self._over)

    async def _run(self, batch: list[PendingPrompt]) -> None:
        name = self._engine.name
        try:
            results = await self._engine.generate([part.prompt for part in batch])
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) is not None and own.cancelling():
                raise
            fault: BaseException = LLMError(f"{name} was cancelled from within", retryable=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code
            fault = error
        else:
            if isinstance(results, list | tuple) and len(results) == len(batch):
                for part, result in zip(batch, results, strict=True):
                    part.settle(completions(result, part.prompt, name, self._settings.tokens))
                return
            given = f"{len(results)} of them" if isinstance(results, list | tuple) else short_repr(results)
            fault = LLMError(f"{name} must return a list of {len(batch)} results for as many prompts, not {given}")
        for part in batch:
            part.fail(_translated(fault, name))

    def _over(self, call: asyncio.Task[None]) -> None:
        """A call has ended and the engine is free. Prompts of a cancelled call fail."""
        for part in self._calls.pop(call):
            if part.outcomes is None:
                part.fail(LLMError(f"{self._engine.name} was stopped", retryable=True))
        self._waiting.freed(call.get_loop().time())
        self._changes += 1
        self._stir()

    def drop(self, parts: Sequence[PendingPrompt]) -> None:
        """Drop prompts of a cancelled rollout, and cancel a call without remaining waiters if that ends it."""
        self._waiting.drop([part.number for part in parts])
        for part in parts:
            if part.call in self._calls:
                wanted = self._calls[part.call]
                wanted.discard(part)
                if not wanted and self._engine.cancels:
                    part.call.cancel()

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer


def _translated(error: BaseException, name: str) -> TrunklineError:
    """An engine's exception as an error of ours; a new one for each rollout, since raising changes it."""
    if isinstance(error, InfrastructureError | UsageError):
        return error
    # Secrets go first: one that the cut splits could not be told any more.
    words = printable(without_secrets(format_error(error, None)), _WORDS)
    if not isinstance(error, LLMError):
        return LLMError(f"{name} raised {type(error).__name__}: {words}", retryable=True)
    # One that is derived from these may be made in any way, and not say everything.
    kind = next(kind for kind in _KINDS if isinstance(error, kind))
    return kind(words, attempts=getattr(error, "attempts", 1), retryable=getattr(error, "retryable", False))


class BatchLLM:
    """A batch engine as an LLM. It stays in its process: a run with it has no workers.

    Requests of all rollouts gather, and leave as a batch when every growing rollout waits for a reply, so that none
    could add to it; when ``max_batch`` is reached; or when one that could leave has waited long enough. A batch is of
    one model.

    Args:
        engine: ``generate(list) -> list``, sync or async: a function, or an object with a method ``generate``. It is
            given ``Prompt`` objects and returns as many texts, dicts or
            ``Completion`` objects, in the same order. A sync one is called in a
            thread, always the same one; what it returns may be awaitable.
        max_batch: Completions of one call at most. A row-step of as many rows is one call.
        max_wait: Seconds that a batch which could leave waits at most for rollouts that have yet to ask.
        tool_wait: Seconds of these that rollouts in tools are waited for; 0 leaves without them.
        supports_n: Whether the engine takes prompts with ``n`` above 1, and returns a list of n completions for these.
            Otherwise it gets a prompt for each draw, with the seed of that draw.
        calls: Calls of the engine at once, also where several runs share it; above 1, a sync engine is called in that
            many threads. An async one that serves several event loops may have as many in each.
        max_concurrency: Turns that a run keeps waiting or in batches; when None, as many as fill the batches that are
            generated and the next ones. A run works on a quarter more tasks at a time than that takes.
        fuse_calls: Whether roles that have the same model share a call; else each role has calls of its own.
        regroup: Whether rows share a call that wait for the same thing, whatever they did before; else only those do
            that are in the same step, and ask a role for the same time in it.
        core_masks: Whether the core keeps account of what rollouts do; else arrays in Python do.
        price: What tokens cost; None where that is not known.
        tokens: Whether the engine's token ids and log-probs are kept on the tree. With ``TokenMode(api="chat")`` it is
            given messages and returns the ids of prompt and completion; with ``TokenMode(api="completions",
            tokenizer=PATH)`` it is given ``Prompt.token_ids`` and returns the completion's ids and raw text. None for
            not at all.

    Raises:
        ConfigError: The engine cannot be called, or a number, the price or the mode makes no sense.
    """

    def __init__(
        self,
        engine: Any,
        *,
        max_batch: int = 4096,
        max_wait: float = 1.0,
        tool_wait: float = 0.05,
        supports_n: bool = False,
        calls: int = 1,
        max_concurrency: int | None = None,
        fuse_calls: bool = True,
        regroup: bool = True,
        core_masks: bool = True,
        price: Price | None = None,
        tokens: TokenMode | None = None,
    ) -> None:
        self.max_batch = check_int("BatchLLM: max_batch", max_batch, 1)
        self.max_wait = check_float("BatchLLM: max_wait", max_wait, 0, unit="seconds")
        self.tool_wait = check_float("BatchLLM: tool_wait", tool_wait, 0, unit="seconds")
        self.supports_n = check_bool("BatchLLM: supports_n", supports_n)
        self.fuse_calls = check_bool("BatchLLM: fuse_calls", fuse_calls)
        self.regroup = check_bool("BatchLLM: regroup", regroup)
        self.core_masks = check_bool("BatchLLM: core_masks", core_masks)
        self.calls = check_int("BatchLLM: calls", calls, 1)
        if max_concurrency is None:
            max_concurrency = 2 * max_batch * calls
        self.max_concurrency = check_int("BatchLLM: max_concurrency", max_concurrency, 1)
        self.price = one_price("BatchLLM: price", price)
        self.tokens = engine_mode("BatchLLM: tokens", tokens)
        # Here and not with a batcher: a call that a cancelled run has left behind still keeps the next run's waiting.
        self.engine = BatchEngine(engine, calls)

    def __repr__(self) -> str:
        return f"BatchLLM({self.engine.name}, max_batch={self.max_batch})"

    def open(self) -> Batcher:
        """Make the LLM that gathers requests. It serves one event loop, and is closed by its opener."""
        return Batcher(self)


class BatchEngine:
    """A user's batch engine behind one interface."""

    def __init__(self, given: Any, calls: int) -> None:
        self._generate = _callable(given)
        self.name = f"the batch engine {printable(getattr(given, '__name__', type(given).__name__), 60)}"
        self.cancels = inspect.iscoroutinefunction(self._generate)
        """Whether a call ends when it is cancelled; one in a thread continues."""
        self._threads = ThreadPoolExecutor(calls, "trunkline-engine")
        self._slots = PerLoopSemaphore(calls)

    async def generate(self, batch: list[Prompt]) -> object:
        async with self._slots.here():
            if self.cancels:
                return await self._generate(batch)
            result, error = await asyncio.get_running_loop().run_in_executor(self._threads, self._call, batch)
            if error is not None:
                raise error
            return await result if inspect.isawaitable(result) else result

    def _call(self, batch: list[Prompt]) -> tuple[Any, BaseException | None]:
        try:
            return self._generate(batch), None
        except BaseException as error:  # noqa: BLE001 - no future takes a StopIteration, and a SystemExit is no exit here
            return None, error


def _callable(given: Any) -> Callable[[list[Prompt]], Any]:
    """The function to call of an engine; of an object its method, which alone says whether it is async."""
    found: Any = getattr(given, "generate", None)
    if found is None and callable(given):
        found = given if inspect.isroutine(given) or isinstance(given, partial) else given.__call__
    what = "BatchLLM: engine must be a function generate(list) -> list, or an object with such a method"
    check_that(callable(found) and not isinstance(given, type), what, given)
    return cast("Callable[[list[Prompt]], Any]", found)
