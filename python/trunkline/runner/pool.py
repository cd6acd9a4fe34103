"""The pool: engines for the many runs of a training loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from trunkline._internal.aio import in_a_loop
from trunkline._internal.validation import check_choice
from trunkline.errors import ConfigError, UsageError
from trunkline.runner.run import arun, run, stream
from trunkline.runner.worker_pool import WorkerPool
from trunkline.tree.records import check_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from trunkline.agent import Agent
    from trunkline.runner.options import Options, TaskSource
    from trunkline.runner.result import Run
    from trunkline.team.team import Team
    from trunkline.tree.views import Tree


class Pool(WorkerPool):
    """Worker processes that are started once and serve many runs, one at a time, such as the steps of a training loop.

    Use it as ``with Pool(workers=4) as pool``, or ``async with``; ``pool.run(...)`` is ``run(..., pool=pool)``.
    What processes have imported stays imported: code that is edited meanwhile needs a new pool. A process that dies
    between two runs is replaced by the next one. Nothing is left of a pool that was not closed when the interpreter
    ends.

    Args:
        kind: ``local`` for processes on this machine; ``inline`` for none, which suits live clients and debugging;
            ``ray`` for actors of a Ray cluster (the ``ray`` extra).
        workers: How many, 1 to 256; two, or one on a machine with one core, when None.
        address: Of the Ray cluster, as Ray writes it; when None, the one that this process is connected to, or that
            ``RAY_ADDRESS`` names, else a new one on this machine.
        runtime_env: What Ray is to provide to the actors, such as ``{"working_dir": "."}``: on other machines they
            must be able to import trunkline and your code.

    Raises:
        ConfigError: There is no such kind, it takes no such setting, or its extra is not installed.
    """

    def __init__(
        self,
        kind: str = "local",
        *,
        workers: int | None = None,
        address: str | None = None,
        runtime_env: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(kind, workers, address, runtime_env)
        self._changing = threading.Lock()

    def run(self, agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]) -> Run:
        """Run on this pool; see ``trunkline.run``.

        Raises:
            UsageError: The pool is closed, at work, or another process's; or what ``trunkline.run`` raises.
        """
        return run(agent, tasks, **_on(self, options))

    async def arun(self, agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]) -> Run:
        """Run on this pool; see ``trunkline.arun``. Cancelling it waits until the engines are at rest."""
        return await arun(agent, tasks, **_on(self, options))

    def stream(
        self, agent: Agent | Team, tasks: TaskSource | None = None, **options: Unpack[Options]
    ) -> AsyncIterator[Tree]:
        """Run on this pool and yield each tree once it is complete; see ``trunkline.stream``."""
        return stream(agent, tasks, **_on(self, options))

    async def aupdate_weights(
        self,
        version: str,
        update: Callable[[], object] | None = None,
        policy: Literal["finish", "abort_resume", "drain"] = "finish",
    ) -> None:
        """Say that the server's weights change, also while a run is going on; when it returns, the change is complete.

        Every turn keeps the version that it was asked under, and turns of two versions are never one node. A rollout
        that is growing continues: its earlier turns are of the old weights, its later ones of the new.

        ``finish``: ``update`` runs beside everything else, then what is asked carries the new version. A turn that was
        asked before that keeps the old one, whichever weights ended it: its version is the oldest it can be.
        ``abort_resume``: no turn is asked, those in flight are given up (calls that brought nothing), ``update`` runs,
        and they are asked again. ``drain``: no turn is asked until those in flight have ended; then ``update`` runs,
        and all go on. Under both, every turn was made by exactly the version it carries.

        Args:
            version: What the new weights are called; the number at its end, 12 in ``step-12``, is kept with each token.
            update: Loads the weights into the server; may be ``async``. If it fails, the old version stays in force,
                the run continues, and its error is raised.
            policy: What happens to turns in flight.

        Raises:
            ConfigError: The version or the policy makes no sense.
            UsageError: Another change is not complete, the pool is closed or another process's, or an inline pool's run
                is going on in another loop.
        """
        self.check()
        if check_version("version", version) is None:
            raise ConfigError("version must be a text such as 'step-12', not None")
        check_choice("policy", policy, "finish", "abort_resume", "drain")
        if not self._changing.acquire(blocking=False):
            raise UsageError("another change of the weights is not complete yet; wait for it")
        try:
            await self._change(version, update, policy)
        finally:
            self._changing.release()

    def update_weights(
        self,
        version: str,
        update: Callable[[], object] | None = None,
        policy: Literal["finish", "abort_resume", "drain"] = "finish",
    ) -> None:
        """Like ``aupdate_weights``, for code without a running loop, such as another thread.

        Raises:
            UsageError: There is a running loop: await ``aupdate_weights`` in it; or what that raises.
        """
        if in_a_loop():
            raise UsageError("update_weights inside a running loop: await aupdate_weights there")
        asyncio.run(self.aupdate_weights(version, update, policy))

    async def _change(self, version: str, update: Callable[[], object] | None, policy: str) -> None:
        coordinator = self.coordinator
        if coordinator is not None and self.loop_thread is None and self.loop is not asyncio.get_running_loop():
            raise UsageError("the run of this inline pool belongs to another event loop; await aupdate_weights there")
        self.policy = policy
        try:
            if coordinator is not None and policy != "finish":
                await self._led(coordinator.hold(abort=policy == "abort_resume"))
            if update is not None and inspect.isawaitable(loaded := update()):
                await loaded
        except BaseException:
            await self._settle()
            raise
        await self._settle(version)

    async def _settle(self, version: str | None = None) -> None:
        """Release all turns under the new version, if one is given; also those of a run that began meanwhile."""
        self.policy = None
        self.weights = version or self.weights
        coordinator = self.coordinator
        if coordinator is not None:
            await self._led(coordinator.change(version or coordinator.version))

    async def _led(self, step: Coroutine[None, None, None]) -> None:
        """Run a step of a change in the loop that leads the run."""
        if self.loop_thread is None:
            await step
        else:
            await self.loop_thread.send(step).ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _on(pool: Pool, options: Options) -> Options:
    if "pool" in options:
        raise TypeError("a pool's run takes no pool: it runs on this one")
    return {**options, "pool": pool}
