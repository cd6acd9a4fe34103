"""Environments in the form of Gymnasium's, without Gymnasium; importable by workers."""

from __future__ import annotations

import random
from typing import Any


class Discrete:
    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start

    def contains(self, value: Any) -> bool:
        return isinstance(value, int) and self.start <= value < self.start + self.n


class Text:
    min_length, max_length = 1, 5

    def contains(self, value: Any) -> bool:
        return isinstance(value, str) and value in {"north", "south", "east", "west"}


class Dict:
    def __init__(self, **spaces: Any) -> None:
        self.spaces = spaces

    def contains(self, value: Any) -> bool:
        return value.keys() == self.spaces.keys() and all(one.contains(value[key]) for key, one in self.spaces.items())


WAYS = {"north": (0, -1), "south": (0, 1), "east": (1, 0), "west": (-1, 0)}


class Maze:
    """A field of five by five with a goal, by chance of the seed; each step of it may slip."""

    action_space: Any = Dict(way=Text(), far=Discrete(2, 1))
    observation_space: Any = Dict(place=Text(), left=Discrete(9))
    render_mode: str | None = None
    open = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.chance, self.left = random.Random(seed), 8
        self.place, self.goal = (0, 0), tuple(self.chance.randrange(1, 5) for _ in range(2))
        type(self).open += 1
        return self._seen(), {"seed": seed, "options": options}

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        across, down = WAYS[action["way"]]
        far = action["far"] - (self.chance.random() < 0.2)
        self.place = tuple(min(4, max(0, at + far * by)) for at, by in zip(self.place, (across, down), strict=True))
        self.left -= 1
        return self._seen(), -1 / 8, self.place == self.goal, self.left == 0, {}

    def _seen(self) -> dict[str, Any]:
        return {"place": " ".join(map(str, self.place)), "left": self.left}

    def close(self) -> None:
        type(self).open -= 1


class Drawn(Maze):
    """The same in colours, for a terminal."""

    action_space = Discrete(4)
    observation_space = Discrete(25)
    render_mode = "ansi"

    def step(self, action: int) -> Any:
        return super().step({"way": list(WAYS)[action], "far": 1})

    def _seen(self) -> Any:
        return self.place[0] + 5 * self.place[1]

    def render(self) -> str:
        return f"\n\x1b[1A.\x1b[41;1mA\x1b[0m.\x1b[32m{self.left}\n"


def make() -> Maze:
    """Make a maze."""
    return Maze()
