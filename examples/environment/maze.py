# python maze.py
"""An environment of one's own: a maze, whose rollouts fork in the middle with snapshots and without.

No server is needed: the model walks by the seed of its requests. For a model of your own, give its name and
``llm="http://localhost:8000/v1"``; or write the task into a file and run ``trunkline run tasks.jsonl --model NAME
--base-url http://localhost:8000/v1 --tools maze.py:walk --environment maze.py:Maze --reward step_sum``.
"""

import json
import random
from typing import Any, Literal

import trunkline as tl

WALLS = ("#######", "#    ##", "# ## ##", "#  #  #", "## ## #", "##    #", "#######")
Place = tuple[int, int]
GOAL = (5, 5)
WAYS: dict[str, Place] = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}


class Maze(tl.Environment):
    """Where a rollout stands, and how far it went."""

    async def fresh(self, task: tl.Task) -> None:
        self.place: Place = (1, 1)
        self.walked = 0

    async def snapshot(self) -> bytes:
        return json.dumps([self.place, self.walked]).encode()

    async def restore(self, snapshot: bytes) -> None:
        (down, across), self.walked = json.loads(snapshot)
        self.place = (down, across)

    async def stepped(self) -> tuple[float, bool, bool]:
        """Reward of the step, whether the maze is solved, whether time is up."""
        return (1.0 if self.place == GOAL else -0.02), self.place == GOAL, self.walked >= 60

    async def final_info(self) -> dict[str, Any]:
        return {"walked": self.walked, "solved": self.place == GOAL}


class Forgetful(Maze):
    """The same without snapshots: at a fork the calls on record run again."""

    snapshots = 0


@tl.tool
async def walk(way: Literal["north", "south", "west", "east"], maze: Maze) -> str:
    """Walk until something changes: a wall ahead, or a way to a side.

    Args:
        way: Where to.
    """
    down, across = WAYS[way]
    steps = 0
    while WALLS[maze.place[0] + down][maze.place[1] + across] != "#":
        maze.place = (maze.place[0] + down, maze.place[1] + across)
        steps += 1
        if maze.place == GOAL or open_ways(maze.place) - {(down, across), (-down, -across)}:
            break
    maze.walked += max(steps, 1)
    names = [name for name, step in WAYS.items() if step in open_ways(maze.place)]
    return f"You walked {steps}. Ways from here: {', '.join(names)}."


def open_ways(place: Place) -> set[Place]:
    return {(down, across) for down, across in WAYS.values() if WALLS[place[0] + down][place[1] + across] != "#"}


class Walker:
    """Stands in for a model: takes any way that is open."""

    async def complete(self, request: tl.Request) -> dict[str, Any]:
        chance = random.Random(json.loads(request.body)["seed"])
        way = chance.choice(ways_in(request.messages[-1]["content"]))
        call = {"name": "walk", "arguments": json.dumps({"way": way})}
        message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def ways_in(text: str) -> list[str]:
    return [way for way in WAYS if way in text.partition("here: ")[2]] or ["east", "south"]


def main() -> None:
    tasks = [tl.Task.ask("Find the way out: walk(way) until you are there.", id="maze")]
    trees = []
    for maze in (Maze, Forgetful):
        agent = tl.Agent(model="walker", tools=[walk], environment=maze, max_turns=40)
        run = tl.run(agent, tasks, llm=Walker(), strategy=tl.TreeGRPO(trees=2, forks=3), seed=1)
        trees.append(tree := run["maze"])
        print(f"{maze.__name__}: {run.summary().replayed} calls ran again for forks")
        for rollout in tree.rollouts:
            print(f"  {rollout.termination} {rollout.final_info} reward {rollout.reward:.2f}")
    assert trees[0].digest() == trees[1].digest()
    print("both trees are equal")


if __name__ == "__main__":
    main()
