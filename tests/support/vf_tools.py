"""A taskset of verifiers with a tool server for each episode, which counts what it is asked."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf

__all__ = ["ToolsTaskset"]


class CounterConfig(vf.ToolsetConfig):
    start: int = 0


class Counter(vf.Toolset[CounterConfig, vf.State]):
    """Adds numbers up, within one episode."""

    async def setup(self) -> None:
        self.sum = self.config.start

    @vf.tool
    async def look(self, place: int) -> str:
        """Look at a place."""
        self.sum += place
        return f"There is {place**2}, and so far {self.sum}"


class ToolsConfig(vf.TaskConfig):
    counter: CounterConfig = CounterConfig(start=100)


class ToolsTask(vf.Task[vf.TaskData, vf.State, ToolsConfig]):
    @classmethod
    def toolsets(cls, config: ToolsConfig) -> list[Any]:
        return [Counter(config.counter)]

    @vf.reward
    async def sums(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class ToolsTasksetConfig(vf.TasksetConfig):
    task: ToolsConfig = ToolsConfig()


class ToolsTaskset(vf.Taskset[ToolsTask, ToolsTasksetConfig]):
    def load(self):
        yield ToolsTask(vf.TaskData(prompt="Sum up."), self.config.task)


if __name__ == "__main__":
    Counter.run()
