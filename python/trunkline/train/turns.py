"""Single-turn samples: every model turn of a run with the conversation before it, for trainers that know no turns."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from trunkline._internal.validation import check_choice
from trunkline.train.advantages import Advantages, TurnValue, merged
from trunkline.train.selection import CallHistory, Chosen, Rules, again, draw_of, sent, turns_of
from trunkline.tree.records import EnvironmentRecords, version_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trunkline.train.advantages import Estimator
    from trunkline.tree.views import Tree
    from trunkline.types import Message


class TurnSample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One model turn.

    Attributes:
        task: Id of the task.
        group: Number of the task's tree among those that were given.
        subgroup: The initial chain that the rollout was expanded for.
        rollout: The rollout; of a turn that several share and that stands here once, the first of those trained.
        node: The turn's node in its tree.
        turn: Which turn of the path it is, from 0.
        draw: Which sample of its state it is, as in the rollout's fork path.
        conversation: The messages that were sent for it, a JSON array: those before it on its path, or what a program
            asked with; with ``history="calls"``, those without what earlier turns said beside their tool calls.
        reply: The turn's own message, JSON.
        aside: What the model said that is not sent again, such as its reasoning.
        reward: Reward of the trajectory, with penalties; of a turn that stands here once, the mean over the rollouts
            that count. NaN while unscored, never 0.
        step_reward: What the environment gave for the turn; NaN where it gave nothing.
        advantage: Its advantage; 0 where it is not trained.
        weight: How many rollouts it is trained for; 0 where it is not trained.
        trained: Whether it is trained: no filter masked it, and it has a reward.
        weights: The version of the weights that it was asked under; None where unknown.
        min_weights: The version of the first turn of its rollout: the oldest.
        max_weights: The version of the last one: the newest. It differs where weights changed in the middle.
    """

    task: str
    group: int
    subgroup: int
    rollout: int
    node: int
    turn: int
    draw: int
    conversation: msgspec.Raw
    reply: msgspec.Raw
    aside: str | None
    reward: float
    advantage: float
    weight: int
    trained: bool
    weights: str | None = None
    min_weights: str | None = None
    max_weights: str | None = None
    step_reward: float = math.nan

    @property
    def messages(self) -> list[Message]:
        """What was sent, and the turn."""
        before: list[Message] = msgspec.json.decode(self.conversation)
        return [*before, msgspec.json.decode(self.reply)]


def turns(
    run: Iterable[Tree],
    *,
    estimator: Estimator,
    shared: Literal["once", "repeat"],
    censored: Literal["mask", "keep"] | None = None,
    on_failed: Literal["mask", "drop_group"] = "mask",
    keep_masked: bool = True,
    history: Literal["full", "calls"] = "full",
    **options: str | float | bool,
) -> Iterator[TurnSample]:
    """Take the turns of multi-turn trajectories apart (as AgentFly trains them, Wang et al. 2025, arXiv 2507.14897).

    They come tree by tree, rollout by rollout, turn by turn. Dropped rollouts are left out, and so are groups that a
    filter broke on, which is logged.

    Args:
        run: A run, or trees.
        estimator: A preset of ``trunkline.train.presets``, or a function of the trajectories of one group
            that count (a list of ``trunkline.Trajectory``) that returns an advantage for each, None for none.
        shared: A turn that several rollouts share stands here ``once``, with their mean advantage and their number as
            its weight; or ``repeat``, once for each of them. The sum of advantage times weight is the same.
        censored: ``mask`` or ``keep`` for rollouts that were cut off; a group that has such is refused without it.
        on_failed: ``mask`` trains nothing of rollouts that broke, ``drop_group`` leaves their groups out.
        keep_masked: Whether turns that are not trained are listed.
        history: What a conversation keeps of the turns before its own: ``full`` all that was sent; ``calls`` their tool
            calls alone, and the observations, so that no reasoning or prose of an earlier turn is in it. A turn without
            a call is left out there, with what it was told about that. What a program asked stays as it was sent. The
            model did not see such a conversation, so log-probabilities of the run are not those of its samples.
        options: Options of the preset.

    Returns:
        The samples, made as they are asked for; each holds its conversation once.

    Raises:
        ConfigError: A setting has a value it cannot have.
        ArgumentError: The estimator does not take these options or rewards.
        UsageError: A group has rollouts that were cut off, and ``censored`` is not said; or the estimator whitens over
            tokens, and of a trained turn their number is not known; or ``history="calls"`` meets calls of a user's own
            dialect, which it cannot read.
    """
    check_choice("shared", shared, "once", "repeat")
    check_choice("history", history, "full", "calls")
    trees = again(run)
    advantages = Advantages(trees, Rules(censored, on_failed).check(), estimator, options)
    samples = _samples(trees, advantages, once=shared == "once", calls=history == "calls")
    return samples if keep_masked else (sample for sample in samples if sample.trained)


def _samples(trees: Iterable[Tree], advantages: Advantages, *, once: bool, calls: bool) -> Iterator[TurnSample]:
    for group, tree in enumerate(trees):
        before = CallHistory(tree).sent if calls else partial(sent, tree.core)
        given = EnvironmentRecords(tree.core)
        shared: dict[object, tuple[int, list[tuple[Chosen, TurnValue]]]] = {}
        paths = {chosen.rollout: turns_of(tree, chosen.rollout) for chosen in advantages.rollouts[group]}
        for chosen in advantages.rollouts[group]:
            for turn, node in enumerate(paths[chosen.rollout]):
                key = node if once else (chosen.rollout, node)
                worth = advantages.of(group, chosen, turn, node)
                shared.setdefault(key, (node, []))[1].append((chosen, worth))
        for node, rollouts in shared.values():
            yield _sample(tree, group, node, rollouts, before(node), given, paths)


def _sample(
    tree: Tree,
    group: int,
    node: int,
    rollouts: list[tuple[Chosen, TurnValue]],
    conversation: bytes,
    given: EnvironmentRecords,
    paths: dict[int, list[int]],
) -> TurnSample:
    core = tree.core
    chosen = next((one for one, value in rollouts if value.trained), rollouts[0][0])
    facts = core.rollout(chosen.rollout)
    path = paths[chosen.rollout]
    turn = path.index(node)
    step = given.step(chosen.rollout, turn)
    oldest, newest = (version_in(core.node(end).namespace) for end in (path[0], path[-1]))
    return TurnSample(
        task=tree.task.id,
        group=group,
        subgroup=facts.subgroup,
        rollout=chosen.rollout,
        node=node,
        turn=turn,
        draw=draw_of(facts.path, turn),
        conversation=msgspec.Raw(conversation),
        reply=msgspec.Raw(core.message(node)),
        aside=core.aside(node),
        **merged(rollouts),
        weights=version_in(core.node(node).namespace),
        min_weights=oldest,
        max_weights=newest,
        step_reward=math.nan if step is None or step.reward is None else step.reward,
    )
