"""The same estimators as one would write them by hand: vectorised numpy, and the plain loop over a dictionary."""

from __future__ import annotations

from collections import defaultdict

import numpy as np


def grpo_numpy(rewards: np.ndarray, groups: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    """GRPO by dense group numbers, all groups of two or more."""
    sizes = np.bincount(groups)
    means = np.bincount(groups, rewards) / sizes
    apart = rewards - means[groups]
    stds = np.sqrt(np.bincount(groups, apart * apart) / (sizes - 1))
    return apart / (stds + eps)[groups]


def grpo_loop(rewards: list[float], groups: list[int], eps: float = 1e-6) -> list[float]:
    """GRPO with a list of rewards for every group."""
    scores = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        scores[group].append(reward)
    baseline = {}
    for group, values in scores.items():
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        baseline[group] = (mean, variance**0.5 + eps)
    found = []
    for reward, group in zip(rewards, groups, strict=True):
        mean, scale = baseline[group]
        found.append((reward - mean) / scale)
    return found


def tree_grpo_numpy(rewards: np.ndarray, groups: np.ndarray, subgroups: np.ndarray) -> np.ndarray:
    """Tree-GRPO: between and within trees; ``subgroups`` are dense within a group."""
    inner = groups.astype(np.int64) * (int(subgroups.max()) + 1) + subgroups
    return grpo_numpy(rewards, groups) + grpo_numpy(rewards, inner)


class Levels:
    """Leaf means by numpy, one step a level of the tree. The levels are found once, as a trainer would keep them."""

    def __init__(self, parents: np.ndarray, leaves: np.ndarray) -> None:
        self.parents, self.leaves = parents.astype(np.int64), leaves.astype(np.int64)
        depths = np.zeros(len(parents), np.int64)
        for node, parent in enumerate(self.parents.tolist()):
            depths[node] = 0 if parent == node else depths[parent] + 1
        order = np.argsort(depths, kind="stable")
        self.levels = np.split(order, np.cumsum(np.bincount(depths))[:-1])

    def values(self, rewards: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """V(s), V(s) - V(parent), V(s) - V(root) of one tree."""
        nodes = len(self.parents)
        counts = np.bincount(self.leaves, minlength=nodes).astype(float)
        sums = np.bincount(self.leaves, rewards, minlength=nodes)
        for level in self.levels[:0:-1]:
            np.add.at(counts, self.parents[level], counts[level])
            np.add.at(sums, self.parents[level], sums[level])
        values = sums / counts
        return values, values - values[self.parents], values - values[0]
