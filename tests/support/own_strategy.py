"""A strategy as a user writes it; docs/how-to/strategies.md shows it."""

import msgspec

import trunkline as tl


class Recheck(msgspec.Struct, frozen=True):
    """Two chains; while answers differ, the last turn of the newest is drawn again, up to ``most`` rollouts."""

    most: int = 5

    def rollouts(self):
        return self.most

    def start(self, view):
        yield tl.strategies.Fork(n=2)

    def ended(self, view):
        tries = view.tree.rollouts
        turns = [node for node in tries[-1].nodes if node.kind.name == "TURN"]
        if turns and len({rollout.answer for rollout in tries}) > 1 and len(tries) < self.most:
            yield tl.strategies.Fork(turns[-1].parent.id)


def brevity(rollout):
    """A value: the fewer words the last observation has, the better."""
    return -len(rollout.leaf.text.split())
