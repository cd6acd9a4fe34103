"""aggregate(), registry of aggregators."""

from __future__ import annotations

from inspect import isawaitable
from typing import TYPE_CHECKING, Final, cast

from trunkline._internal.registry import Registry
from trunkline._internal.validation import check_that
from trunkline.errors import ConfigError
from trunkline.scoring.aggregators.base import Aggregator, Decision
from trunkline.scoring.aggregators.llm import Integrate, Synthesis
from trunkline.scoring.aggregators.voting import BestOfN, Majority, WeightedVote
from trunkline.scoring.confidence import candidates

if TYPE_CHECKING:
    from trunkline.tree.views import Tree


AGGREGATORS: Final[Registry[type]] = Registry(
    "aggregator",
    {
        "majority": Majority,
        "weighted": WeightedVote,
        "best": BestOfN,
        "synthesis": Synthesis,
        "integrate": Integrate,
    },
)


def check_aggregator(name: str, aggregator: Aggregator | str) -> Aggregator:
    """Return an aggregator, of a text the one that it names as on the command line; ConfigError for anything else."""
    if isinstance(aggregator, str):
        aggregator = cast("Aggregator", AGGREGATORS.make(aggregator, name))
    fits = isinstance(aggregator, Aggregator) and not isinstance(aggregator, type)
    check_that(fits, f"{name} must be an aggregator, such as Majority() or WeightedVote()", aggregator)
    return aggregator


async def aggregate(tree: Tree, aggregator: Aggregator | str = "majority", *, by: str = "logprob") -> Decision:
    """Make one answer of what the rollouts of a tree answered.

    Rollouts that broke, or were cut or filtered, have no vote, and neither have those that grow. For anything but a
    tree, make candidates and ask the aggregator itself: ``await Majority().decide(question, candidates)``.

    Args:
        tree: The tree.
        aggregator: What decides, or its name with options as on the command line: ``"weighted:by=value"``.
        by: Where the candidates' confidence comes from: ``logprob``, ``entropy``, ``verbalised``, ``reward`` or
            ``value``.

    Returns:
        The decision, with the votes; its answer is None where no candidate has one.

    Raises:
        ConfigError: An argument cannot be used.
        EndpointError: The aggregator asks a model whose endpoint serves no rollout.
    """
    decider = check_aggregator("aggregator", aggregator)
    wanted = bool(getattr(decider, "reads_messages", False))
    # A user's own class need not do what is annotated.
    asked: object = decider.decide(tree.task.question, candidates(tree, by, messages=wanted))
    if not isawaitable(asked):
        raise ConfigError(f"{type(decider).__name__}.decide must be a coroutine function: async def decide(...)")
    decision: Decision = await asked
    check_that(isinstance(decision, Decision), f"{type(decider).__name__}.decide must return a Decision", decision)
    return decision
