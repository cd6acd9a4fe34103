"""A strategy of one's own: tries of a question until enough of them agree, each grown from a random state."""

from collections import Counter
from collections.abc import Iterator

import msgspec

from trunkline.strategies import Fork, View


class Tiebreak(msgspec.Struct, frozen=True):
    """Two chains; while no answer has ``votes`` votes, one more try forks at a random state, up to ``most`` tries."""

    votes: int = 2
    most: int = 6

    def rollouts(self) -> int:
        return self.most  # what --dry-run prints, and no task gets more

    def formula(self) -> str:
        return f"2 chains, then forks until {self.votes} agree: {self.most} at most"

    def start(self, view: View) -> Iterator[Fork]:
        yield Fork(n=2)

    def ended(self, view: View) -> Iterator[Fork]:
        # All that is known is read off the tree, so that a run that was broken off decides the same when it is resumed.
        tries = view.tree.rollouts
        answers = Counter(found.answer.strip().casefold() for found in tries if found.answer)
        if len(tries) >= self.most or max(answers.values(), default=0) >= self.votes:
            return
        points = view.fork_points() or [None]  # None is the prompt
        yield Fork(points[view.seed() % len(points)])
