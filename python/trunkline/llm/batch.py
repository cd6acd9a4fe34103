"""A batch engine where an LLM is: ``generate(list) -> list``, as a trainer's ``generate_sequences`` is driven."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from trunkline.bounds import number, shown, whole
from trunkline.errors import ConfigError
from trunkline.llm.batcher import Batcher
from trunkline.llm.price import one_price
from trunkline.llm.slots import Slots
from trunkline.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.price import Price
    from trunkline.llm.prompt import Prompt

__all__ = ["BatchLLM", "Engine"]


class BatchLLM:
    """A batch engine as an LLM; ``trunkline.BatchLLM``. It stays in its process: a run with it has no workers.

    Requests of all rollouts gather, and leave as a batch when every growing rollout waits for a reply, so that nobody
    could add to it; when ``max_batch`` is reached; or when one that could leave has waited long enough. A batch is of
    one model.

    Args:
        engine: ``generate(list) -> list``, sync or async: a function, or an object with a method ``generate``. It is
            given :class:`~trunkline.llm.prompt.Prompt` objects and returns as many texts, dicts or
            :class:`~trunkline.llm.completion.Completion` objects, in the same order. A sync one is called in a thread,
            always the same one; what it returns may be awaitable.
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
            that ask the same role for the same time.
        core_masks: Whether the core keeps account of what rollouts do; else arrays in Python do.
        price: What tokens cost; None where that is not known.

    Raises:
        ConfigError: The engine cannot be called, or a number or the price makes no sense.
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
    ) -> None:
        self.max_batch = whole("BatchLLM: max_batch", max_batch, 1)
        self.max_wait = number("BatchLLM: max_wait", max_wait, 0, unit="seconds")
        self.tool_wait = number("BatchLLM: tool_wait", tool_wait, 0, unit="seconds")
        self.supports_n = _switch("supports_n", supports_n)
        self.fuse_calls = _switch("fuse_calls", fuse_calls)
        self.regroup = _switch("regroup", regroup)
        self.core_masks = _switch("core_masks", core_masks)
        self.calls = whole("BatchLLM: calls", calls, 1)
        if max_concurrency is None:
            max_concurrency = 2 * max_batch * calls
        self.max_concurrency = whole("BatchLLM: max_concurrency", max_concurrency, 1)
        self.price = one_price("BatchLLM: price", price)
        # Here and not with a batcher: a call that a cancelled run has left behind still keeps the next run's waiting.
        self.engine = Engine(engine, calls)

    def __repr__(self) -> str:
        return f"BatchLLM({self.engine.name}, max_batch={self.max_batch})"

    def open(self) -> Batcher:
        """Make the LLM that gathers requests. It serves one event loop, and is closed by whoever opened it."""
        return Batcher(self)


class Engine:
    """Somebody's batch engine, called the same way whatever it is.

    Args:
        given: A function, or an object with a method ``generate``.
        calls: Calls at once: of a sync one in all, as it has that many threads; of an async one in each event loop.

    Raises:
        ConfigError: It is neither.
    """

    def __init__(self, given: Any, calls: int) -> None:
        self._generate = _callable(given)
        self.name = f"the batch engine {printable(getattr(given, '__name__', type(given).__name__), 60)}"
        self.cancels = inspect.iscoroutinefunction(self._generate)
        """Whether a call ends when it is cancelled; one in a thread goes on."""
        self._threads = ThreadPoolExecutor(calls, "trunkline-engine")
        self._slots = Slots(calls)

    async def generate(self, batch: list[Prompt]) -> object:
        """Call the engine once.

        Raises:
            BaseException: Whatever it raised.
        """
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


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"BatchLLM: {name} must be true or false, not {shown(value)}")
    return value


def _callable(given: Any) -> Callable[[list[Prompt]], Any]:
    """What to call of what was given; of an object its method, as only that says whether it is async."""
    found: Any = getattr(given, "generate", None)
    if found is None and callable(given):
        found = given if inspect.isroutine(given) or isinstance(given, partial) else given.__call__
    if not callable(found) or isinstance(given, type):
        raise ConfigError(
            "BatchLLM: engine must be a function generate(list) -> list, or an object with such a method, "
            f"not {shown(given)}"
        )
    return cast("Callable[[list[Prompt]], Any]", found)
