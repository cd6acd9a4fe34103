"""The loop: rollouts of new questions, one update on packed trees, and so on; its arms, and the evaluation."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import torch

import trunkline as tl
from rl_tools.policy import Engine, Policy
from rl_tools.server import Server
from rl_tools.task import Question, agent, questions, right, tasks
from trunkline.train.torch import policy_loss, tree_logprobs, tree_mask, tree_rows

CLIP = (0.2, 0.2)
QUESTIONS = 8
"""Of each update."""


class Arm(NamedTuple):
    """How rollouts are sampled, and what credit they get. All else is the same for all arms."""

    strategy: Any
    estimator: str


def arms(size: int, tree: tuple[int, int, int]) -> dict[str, Arm]:
    """Make the arms of a study.

    Args:
        size: Chains of a question; arms of a quarter budget have a quarter of them.
        tree: M, N and L of the trees.
    """
    grown = tl.TreeGRPO(*tree)
    return {
        "chains": Arm(tl.Chain(size), "verl_grpo"),
        "tree_grpo": Arm(grown, "tree_grpo"),
        "treerl": Arm(grown, "treerl_code"),
        "tree_outcome": Arm(grown, "tree_grpo_inter"),
        "quarter_chains": Arm(tl.Chain(size // 4), "verl_grpo"),
        "quarter_trees": Arm(grown, "tree_grpo"),
        "chains_avoid": Arm(tl.Chain(size, avoid=True), "verl_grpo"),
        "chains_ladder": Arm(tl.Chain(size, temperatures=(1.0, 1.5)), "verl_grpo"),
    }


class Rollouts:
    """Runs of the policy as it is, in this process.

    Args:
        model: The policy.
        tokenizer: Folder of its tokenizer.
        steps: Tool calls of a question at most.
        http: Whether its engine is asked through a server, as one elsewhere would be.
    """

    def __init__(self, model: Policy, tokenizer: str, steps: int = 6, *, http: bool = False) -> None:
        self.engine = Engine(model)
        self._tokens = tl.TokenMode(api="completions", tokenizer=tokenizer)
        self._http = http
        self._steps = steps
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._pool = self._open.enter_context(tl.Pool("inline"))
        self._llm: Any
        if self._http:
            url = self._open.enter_context(Server(self.engine).serving())
            self._llm = tl.LLM(url, api_key="none", tokens=self._tokens)
        else:
            # Tools take microseconds: wait for them, so that all rollouts are in each batch.
            self._llm = tl.BatchLLM(self.engine, supports_n=True, tool_wait=1.0, tokens=self._tokens)
        return self

    def __exit__(self, *raised: object) -> None:
        self._open.close()

    def run(self, asked: Sequence[Question], strategy: Any, seed: int, temperature: float = 1.0) -> list[tl.Tree]:
        """Grow a tree of each question."""
        sampled = agent(self._steps, temperature)
        return list(self._pool.run(sampled, tasks(asked), llm=self._llm, strategy=strategy, reward=right, seed=seed))

    def accuracy(self, asked: Sequence[Question], *, temperature: float, seed: int = 0) -> float:
        """Return the share of questions that one rollout each answers rightly; temperature 0 is greedy."""
        trees = self.run(asked, tl.Chain(1), seed, temperature)
        return sum(tree.rollouts[0].reward for tree in trees) / len(trees)


def update(
    model: Policy, optimizer: torch.optim.Optimizer, trees: Sequence[tl.Tree], estimator: str
) -> dict[str, float]:
    """Take one step of PPO's clipped loss, a mean over the trained tokens of all rollouts; return figures of it.

    A token that rollouts share is forwarded once and counts for each of them, as if they were rows of their own.
    """
    columns = tl.train.batch(trees, estimator=estimator, shared="repeat").tree(max_tokens=1024, oversize="split")
    rows = list(tree_rows(columns))
    weights = sum(float(row["weights"][row["loss_mask"]].sum()) for row in rows)
    loss, entropy, tokens = 0.0, 0.0, 0
    optimizer.zero_grad()
    for row in rows:
        logits = model(row["ids"][None], row["positions"][None], tree_mask(row["subtree_ends"]))[0]
        logprobs = tree_logprobs(logits, row["ids"], row["parents"])
        part = policy_loss(logprobs, row, clip=CLIP) / weights
        part.backward()
        loss += part.item()
        own = row["parents"][row["loss_mask"]]
        entropy += float(torch.distributions.Categorical(logits=logits.detach()[own]).entropy().sum())
        tokens += len(own)
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    optimizer.step()
    return {
        "loss": loss,
        "gradient": norm,
        "entropy": entropy / tokens,  # nats, a mean over sampled tokens that stand once
        "trained": tokens,
        "trained_flat": weights,
        "forwarded": len(columns["ids"]),
    }


def shape(trees: Sequence[tl.Tree]) -> dict[str, float]:
    """Return the mean reward, the shares of mixed groups, of agreeing rollouts and of reused tokens, and counts."""
    rollouts = [rollout for tree in trees for rollout in tree.rollouts]
    ends = sum(len({rollout.leaf.id for rollout in tree.rollouts}) for tree in trees)
    flat, held = (sum(getattr(tree.tokens, name) for tree in trees) for name in ("flat", "tree"))
    return {
        "reward": sum(rollout.reward for rollout in rollouts) / len(rollouts),
        "mixed": sum(len({rollout.reward for rollout in tree.rollouts}) > 1 for tree in trees) / len(trees),
        "agree": 1 - ends / len(rollouts),
        "reuse": 1 - held / flat,
        "rollouts": len(rollouts),
        "tool_calls": sum(rollout.usage.tools for rollout in rollouts),
    }


def learn(
    arm: Arm,
    model: Policy,
    tokenizer: str,
    *,
    seed: int,
    rate: float,
    tokens: int | None = None,
    updates: int | None = None,
    http: bool = False,
) -> list[dict[str, Any]]:
    """Train a policy until its engine has generated so many tokens, or for so many updates; one of both is needed.

    Args:
        arm: Sampling and credit.
        model: The policy, which is changed.
        tokenizer: Folder of its tokenizer.
        seed: Of questions and draws: equal seeds ask equal questions in equal order, whatever the arm.
        rate: The learning rate of Adam.
        tokens: Generated tokens at which training ends.
        updates: Updates after which it ends.
        http: Whether rollouts ask a server.

    Returns:
        The figures of each update; counts and seconds are sums since the first.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    lines: list[dict[str, Any]] = []
    seconds = {"rollout_seconds": 0.0, "update_seconds": 0.0}
    calls = 0.0
    with Rollouts(model, tokenizer, http=http) as rollouts:
        while (updates is None or len(lines) < updates) and (
            tokens is None or rollouts.engine.counts.generated < tokens
        ):
            asked = training_questions(seed, len(lines))
            start = time.perf_counter()
            trees = rollouts.run(asked, arm.strategy, zlib.crc32(f"draws {seed} {len(lines)}".encode()))
            sampled = time.perf_counter()
            line = shape(trees) | update(model, optimizer, trees, arm.estimator)
            seconds["rollout_seconds"] += sampled - start
            seconds["update_seconds"] += time.perf_counter() - sampled
            calls += line["tool_calls"]
            line |= rollouts.engine.counts._asdict() | seconds | {"tool_calls": calls, "update": len(lines) + 1}
            lines.append(line)
    return lines


def training_questions(seed: int, number: int) -> list[Question]:
    """Return the questions of an update."""
    return questions(f"training {seed} {number}", QUESTIONS)


def evaluate(model: Policy, tokenizer: str, name: str, *, count: int = 300) -> dict[str, float]:
    """Return greedy and sampled accuracy on the held-out questions of that name."""
    asked = questions(f"evaluation {name}", count, held_out=True)
    with Rollouts(model, tokenizer) as rollouts:
        return {
            "greedy": rollouts.accuracy(asked, temperature=0.0),
            "sampled": rollouts.accuracy(asked, temperature=1.0),
        }
