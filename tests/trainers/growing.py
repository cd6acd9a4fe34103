"""Rollouts as adapters ask for them, of random text, and an engine of token ids that samples it."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator
from typing import Any

import doc_pages
from places import ROOT
from playing import Chatter, look, number

import trunkline as tl
from trunkline.tree.views import Tree

ROLLOUTS = 4
"""Of each tree."""


def scored(trajectory: tl.Trajectory) -> float | None:
    """Reward a rollout at random, and leave one of five unscored."""
    worth = number(json.dumps(trajectory.messages))
    return None if worth % 5 == 0 else worth % 11 / 10


def grow(tasks: list[tl.Task], llm: Any, *, n: int, seed: int, validate: bool) -> AsyncGenerator[Tree]:
    """Run the agent, with trees where a group is trained."""
    strategy = tl.Chain(n) if validate or n != ROLLOUTS else tl.TreeGRPO(2, 1, 1)
    # The trainer says at which temperature.
    agent = tl.Agent(
        model="tiny", tools=[look], max_turns=4, dialect=Chatter(), sampling=tl.Sampling(max_tokens=12, stop=["~"])
    )
    return tl.stream(agent, tasks, llm=llm, strategy=strategy, reward=scored, seed=seed)  # type: ignore[return-value]


def broken(tasks: list[tl.Task], llm: Any, *, n: int, seed: int, validate: bool) -> AsyncGenerator[Tree]:
    """Make no trees."""
    raise tl.errors.ConfigError(f"there is no agent for {len(tasks)} tasks")


class Sampler:
    """Samples random tokens, and remembers what was given and sampled."""

    def __init__(self, tokenizer: Any) -> None:
        self.end = tokenizer.eos_token_id
        self.others = [one for one in range(len(tokenizer)) if one not in tokenizer.all_special_ids]
        self.dice = random.Random(1)
        self.calls: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.params: list[dict[str, Any]] = []

    def sample(self, prompt: list[int], params: dict[str, Any]) -> tuple[list[int], list[float], bool]:
        """Sample a completion: its ids, their log-probabilities, and whether it is whole."""
        self.params.append(params)
        size = self.dice.randint(1, 6)
        ids = [self.dice.choice(self.others) for _ in range(size)]
        whole = self.dice.random() < 0.9
        ids += [self.end] * whole
        self.calls.append((tuple(prompt), tuple(ids)))
        return ids, [-self.dice.random() for _ in ids], whole


def prompts(count: int) -> list[list[dict[str, str]]]:
    """Questions as chats."""
    return [
        [{"role": "user", "content": f"What is the capital of {number(json.dumps(one)) % 97}?"}] for one in range(count)
    ]


def printed(word: str, page: str = "trainers") -> str:
    """The block of a how-to in which a word stands."""
    (found,) = [block.text for block in doc_pages.blocks(how_to(page)) if word in block.text]
    return found


def how_to(page: str) -> str:
    """The text of a how-to."""
    return (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
