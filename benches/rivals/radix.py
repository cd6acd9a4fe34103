"""A prefix cache as plain Python keeps it: nodes with dicts of children, tokens compared with ``zip``."""

from __future__ import annotations


class Node:
    """A run of tokens and what follows it, by first token."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.children: dict[int, Node] = {}


def common(left: list[int], right: list[int]) -> int:
    """How many tokens two runs share from their start."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


class Radix:
    """Token paths that share what they share; ids only."""

    def __init__(self) -> None:
        self.root = Node([])
        self.tokens = 0

    def match(self, ids: list[int]) -> int:
        """How many tokens of a path are there. Changes nothing."""
        node, at = self.root, 0
        while child := node.children.get(ids[at]) if at < len(ids) else None:
            same = common(child.ids, ids[at:])
            at += same
            if same < len(child.ids):
                break
            node = child
        return at

    def insert(self, ids: list[int]) -> None:
        """Store what of a path is not there yet."""
        node, rest = self.root, ids
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                node.children[rest[0]] = Node(rest)
                self.tokens += len(rest)
                return
            same = common(child.ids, rest)
            if same < len(child.ids):
                child = self._split(node, child, same)
            node, rest = child, rest[same:]

    def _split(self, parent: Node, child: Node, at: int) -> Node:
        head = Node(child.ids[:at])
        child.ids = child.ids[at:]
        head.children[child.ids[0]] = child
        parent.children[head.ids[0]] = head
        return head
