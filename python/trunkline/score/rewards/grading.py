"""A reward that is asked about many trajectories: opened once, in batches where it takes them, closed at the end."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Self

from trunkline.score.rewards.calling import ask, ask_all, close, opened, unseen
from trunkline.score.rewards.naming import full_name
from trunkline.score.rewards.policy import policy_of
from trunkline.score.rewards.reward import Scored
from trunkline.tools.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trunkline.score.rewards.reward import Reward
    from trunkline.tree.trajectory import Trajectory

__all__ = ["AT_ONCE", "Grader", "grade"]

AT_ONCE: Final = 64
"""Calls of a reward that are open at once when many finished trajectories are graded."""

_THREADS: Final = 16
"""Calls of a blocking reward that run at once."""

_GATHER: Final = 0.005
"""Seconds after the first trajectory of a batch in which others may join it."""

_LEAVE: Final = 2.0
"""Seconds that calls have to end once they are cancelled."""

_Waiting = tuple["Trajectory", "asyncio.Future[Scored]"]


class Grader:
    """Asks one reward in one event loop.

    Trajectories that are asked about within a few milliseconds go to a reward that takes batches in one call, up to as
    many as it takes. Which ones that are is a matter of time, so a value must not depend on it.

    Args:
        reward: The reward.

    Attributes:
        name: What run files call it.

    Raises:
        ConfigError: What it says of how it is asked cannot be.
    """

    def __init__(self, reward: Reward) -> None:
        self.name = full_name(reward)
        self._reward = opened(reward)
        self._policy = policy_of(self._reward)
        self._threads = Threads(_THREADS) if self._policy.thread else None
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def score(self, trajectory: Trajectory, *, cut: bool = False) -> Scored:
        """Ask about one trajectory; see :func:`trunkline.score.rewards.calling.score`.

        Args:
            trajectory: An ended rollout.
            cut: Whether the reward is shown one that was cut.
        """
        early = unseen(trajectory, cut=cut)
        if early is not None:
            return early
        if self._policy.batch is None:
            return await ask(self._reward, trajectory, self._policy, self._threads)
        return await self._gathered(trajectory, self._policy.batch)

    async def score_all(self, trajectories: Sequence[Trajectory], *, at_once: int = AT_ONCE) -> list[Scored]:
        """Ask about trajectories that are all there: in full batches, or one by one.

        Args:
            trajectories: Ended rollouts.
            at_once: The most calls that are open at once.

        Returns:
            One for each, in their order.
        """
        found = [unseen(trajectory, cut=False) for trajectory in trajectories]
        shown = [position for position, early in enumerate(found) if early is None]
        size = self._policy.batch or 1
        batches = iter([shown[start : start + size] for start in range(0, len(shown), size)])

        async def work() -> None:
            for positions in batches:
                listed = [trajectories[position] for position in positions]
                if self._policy.batch is None:
                    said = [await ask(self._reward, listed[0], self._policy, self._threads)]
                else:
                    said = await ask_all(self._reward, listed, self._policy, self._threads)
                for position, one in zip(positions, said, strict=True):
                    found[position] = one

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
        return [Scored(math.nan) if one is None else one for one in found]

    async def close(self) -> None:
        """Let go of calls that nobody waits for, and of what the reward holds open. Nothing is asked afterwards."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_LEAVE)
        if self._threads is not None:
            self._threads.close()
        await close(self._reward)

    async def _gathered(self, trajectory: Trajectory, most: int) -> Scored:
        """Wait with others for a batch to be full, or for the first of it to have waited long enough."""
        if self._closed:
            raise RuntimeError("the grader is closed")  # nobody would send what waits
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Scored] = loop.create_future()
        self._waiting.append((trajectory, future))
        if len(self._waiting) >= most:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(_GATHER, self._send)
        return await future

    def _send(self) -> None:
        """Ask about those who wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = [one for one in self._waiting if not one[1].done()], []
        if waiting:
            call = asyncio.get_running_loop().create_task(self._call(waiting))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, waiting: list[_Waiting]) -> None:
        try:
            said = await ask_all(self._reward, [one for one, _ in waiting], self._policy, self._threads)
            for (_, future), one in zip(waiting, said, strict=True):
                if not future.done():
                    future.set_result(one)
        finally:
            for _, future in waiting:
                future.cancel()


async def grade(reward: Reward, trajectories: Iterable[Trajectory], *, at_once: int = AT_ONCE) -> list[Scored]:
    """Ask a reward about many ended rollouts.

    Args:
        reward: The reward; one that takes batches is given full ones.
        trajectories: Ended rollouts. One that broke, was cut or filtered is not shown to the reward.
        at_once: The most calls that are open at once.

    Returns:
        One for each, in their order: the reward, or NaN with the reason.

    Raises:
        ConfigError: What the reward says of how it is asked cannot be.
    """
    async with Grader(reward) as grader:
        return await grader.score_all(list(trajectories), at_once=at_once)
