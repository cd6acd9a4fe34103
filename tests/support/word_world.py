"""A text environment of Gymnasium, which must be installed: words are guessed letter by letter."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from gymnasium.spaces import Text

WORDS = ("tree", "trunk", "branch", "leaf", "fork")


class Guess(gymnasium.Env[str, str]):
    """A word is drawn by chance; each letter that is in it is shown."""

    action_space = Text(1, min_length=1, charset=string.ascii_lowercase)
    observation_space = Text(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.word, self.found = WORDS[self.np_random.integers(len(WORDS))], set[str]()
        return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        new = action in self.word and action not in self.found
        self.found |= {action}
        return self._shown(), float(new), self.found >= set(self.word), False, {"letters": len(self.found)}

    def _shown(self) -> str:
        return "".join(letter if letter in self.found else "_" for letter in self.word)
