"""Advantages of every turn of a run, by any estimator of the core or a function."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from trunkline._core import MESSAGE, OBSERVATION, SAMPLED, SYNTHETIC, presets, step_forest
from trunkline._internal.text import quoted
from trunkline._internal.validation import check_choice, short_repr
from trunkline.errors import ArgumentError, ConfigError, UsageError
from trunkline.scoring.rewards.base import LARGEST
from trunkline.train.columns import estimate
from trunkline.train.selection import AgentCalls, Chosen, Rules, context_of, mean, select, turns_of
from trunkline.tree.records import EnvironmentRecords
from trunkline.tree.views import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline.tree.views import Tree


OwnEstimator: TypeAlias = "Callable[[list[Trajectory]], Sequence[float | None]]"
"""An estimator of one's own: takes the rollouts of one group that count, and returns an advantage for each.

It may read all that a trajectory has, such as ``final_info`` and ``step_rewards`` of its environment.
"""

Estimator: TypeAlias = "str | OwnEstimator"


def check_one_group(where: str, estimator: Estimator, options: Mapping[str, Any]) -> None:
    """Refuse an estimator whose advantages depend on other groups, where groups are taken one by one."""
    preset = {} if callable(estimator) else presets()[estimator] | dict(options)
    for option, wide, narrow in (("whiten", "batch", "none"), ("scale", "batch_std", "std")):
        if preset.get(option) == wide:
            raise ConfigError(
                f"{where}: the estimator {estimator} has {option}={wide!r}, over all groups of a batch, and groups are "
                f"taken one by one: say {option}={narrow!r}, or choose another"
            )


class TurnValue(NamedTuple):
    """The advantage of one rollout's turn, 0 where it is not trained."""

    advantage: float
    trained: bool


def _anchor(tree: Tree, turn: int) -> object:
    """Return the key by which turns are compared: the program's request, or what was observed before."""
    facts, context = tree.core.node(turn), context_of(tree.core, turn)
    return _observed(tree, facts.parent) if context is None else (facts.agent, context)


def _observed(tree: Tree, state: int) -> tuple[bytes, ...]:
    """Return the messages since the last turn, without call ids, which name the turn that made the calls."""
    core, seen = tree.core, []
    while (facts := core.node(state)).kind in {OBSERVATION, MESSAGE}:
        message = msgspec.json.decode(core.message(state))
        message.pop("tool_call_id", None)
        seen.append(msgspec.json.encode(message))
        state = facts.parent
    return tuple(reversed(seen))


def merged(shared: Sequence[tuple[Chosen, TurnValue]]) -> dict[str, Any]:
    """Return reward, advantage, weight and training of a turn that several rollouts share."""
    advantages = [value.advantage for _, value in shared if value.trained]
    return {
        "reward": mean([chosen.reward for chosen, _ in shared if chosen.counted or len(shared) == 1]),
        "advantage": mean(advantages) if advantages else 0.0,
        "weight": len(advantages),
        "trained": bool(advantages),
    }


class _Scored(NamedTuple):
    """A turn that is compared, its place on the path, and the penalty subtracted from the rollout's reward for it."""

    node: int
    turn: int = 0
    penalty: float = 0.0


def _step_rewards(given: list[float], reward: float, scored: list[_Scored]) -> list[float]:
    """Return each turn's reward: that of its step, and with the last one what is left of the rollout's reward."""
    found = [0.0 if math.isnan(given[one.turn]) else given[one.turn] for one in scored]
    if found:
        found[-1] += reward - math.fsum(found)
    return [value - one.penalty for value, one in zip(found, scored, strict=True)]


class Advantages:
    """Advantages of all turns of a run by an estimator of the core, over a forest in which a turn follows a turn."""

    def __init__(
        self,
        trees: Iterable[Tree],
        rules: Rules,
        estimator: Estimator,
        options: dict[str, Any],
        *,
        by_call: bool = False,
    ) -> None:
        own = callable(estimator)
        if own and options:
            raise ConfigError(f"options belong to presets, and the estimator is a function: leave {min(options)} out")
        if not own:
            check_choice("estimator", estimator, *presets())
        preset = {"lands": "rows"} if own else presets()[str(estimator)]
        known = ", ".join(name for name in preset if name != "lands")
        for name in () if own else options.keys() - set(known.split(", ")):
            # As the core says it, where the name is not that of a column.
            raise ArgumentError(f"an option is {quoted(name)}, and there are {known}; it must be one of these")
        preset = preset | options
        scopes = str(preset.get("scopes", "")).replace(",", "+").split("+")
        self._by_call = by_call
        self._steps = "gamma" in preset
        self.by_turn = self._steps or not {"agent", "anchor"}.isdisjoint(scopes) or (by_call and "unit" in options)
        self._anchored = self._steps or "anchor" in scopes
        self.by_node = preset["lands"] == "nodes"
        self._whitens = preset.get("whiten") == "batch"
        self._parents = array("I")
        names = ("group", "subgroup", "trajectory", "agent", "anchor", "leaves", "tokens")
        self._columns = {name: array("I") for name in names}
        self._rewards, self._masked, self._step_rewards = array("d"), array("B"), array("d")
        self._rows: list[dict[int, int]] = []
        self.roots: list[int] = []
        self._names: dict[object, int] = {}
        self.rollouts: list[list[Chosen]] = []
        told = array("d")
        for tree in trees:
            self.rollouts.append(select(tree, rules))
            self._add(tree, self.rollouts[-1])
            if callable(estimator):
                told.extend(_told(estimator, tree, self.rollouts[-1]))
        self.values: Sequence[float] = told
        self.kept: Sequence[int] = bytes(not math.isnan(value) for value in told)
        if not callable(estimator):
            self.values, self.kept = self._estimate(estimator, options)

    def _add(self, tree: Tree, rollouts: list[Chosen]) -> None:
        root = len(self._parents)
        self.roots.append(root)
        parents, ends = step_forest(*tree.core.shape())
        self._parents.extend(root + parent for parent in parents)
        calls = AgentCalls(tree.core) if self._by_call else None
        firsts: dict[int, int] = {}
        given = EnvironmentRecords(tree.core)
        for chosen in rollouts:
            firsts[chosen.rollout] = len(self._rewards)
            scored = _scored(tree, chosen.rollout, calls) if calls or self.by_turn or self._whitens else []
            if self._whitens:
                lengths = [_trained_tokens(tree, one.node) if chosen.trained else 0 for one in scored]
                self._columns["tokens"].extend(lengths if self.by_turn else [sum(lengths)])
            if not self.by_turn:
                penalty = math.fsum(one.penalty for one in scored) / max(1, len(scored))
                scored = [_Scored(ends[chosen.rollout], penalty=penalty)]
            for one in scored:
                self._row(tree, chosen, one, root)
            if self._steps:
                self._step_rewards.extend(_step_rewards(given.rewards(chosen.rollout), chosen.compared, scored))
        self._rows.append(firsts)

    def _row(self, tree: Tree, chosen: Chosen, scored: _Scored, root: int) -> None:
        core, columns, group = tree.core, self._columns, len(self.roots) - 1
        columns["group"].append(group)
        columns["subgroup"].append(core.rollout(chosen.rollout).subgroup)
        columns["leaves"].append(root + scored.node)
        if self.by_turn:
            columns["trajectory"].append(self._number((group, chosen.rollout)))
            columns["agent"].append(self._number(core.node(scored.node).agent))
        if self._anchored:
            columns["anchor"].append(self._number(_anchor(tree, scored.node)))
        self._rewards.append(chosen.compared - scored.penalty)
        self._masked.append(not chosen.trained)

    def _number(self, name: object) -> int:
        return self._names.setdefault(name, len(self._names))

    def _estimate(self, estimator: str, options: dict[str, Any]) -> tuple[memoryview, memoryview]:
        # Without a row all columns are there, so that an option that does not fit is refused all the same.
        given: dict[str, Any] = {name: column for name, column in self._columns.items() if column or not self._rewards}
        if self._steps:
            given["step_rewards"] = self._step_rewards
        return estimate(estimator, self._rewards, masked=self._masked, parents=self._parents, **given, **options)

    def of(self, tree: int, chosen: Chosen, place: int, node: int) -> TurnValue:
        """Return the value of a rollout's turn; ``place`` counts its turns, or its active agent calls, from 0."""
        row = self.roots[tree] + node if self.by_node else self.row(tree, chosen) + place * self.by_turn
        advantage = float(self.values[row])
        trained = chosen.trained and bool(self.kept[row]) and not math.isnan(advantage)
        return TurnValue(advantage if trained else 0.0, trained)

    def row(self, tree: int, chosen: Chosen) -> int:
        """Return the row of a rollout, or of the first of its turns where rows are turns."""
        return self._rows[tree][chosen.rollout]


def _told(estimator: OwnEstimator, tree: Tree, rollouts: list[Chosen]) -> list[float]:
    """Return what a function says of a group's rollouts that count: one advantage each, NaN where it gives none."""
    counted = [chosen for chosen in rollouts if chosen.counted]
    returned: Any = estimator([Trajectory(tree, chosen.rollout) for chosen in counted]) if counted else []
    if isinstance(returned, Mapping | set) or not isinstance(returned, Iterable):
        raise ConfigError(
            f"the estimator returned {short_repr(returned)}: return a list with an advantage for each rollout, in order"
        )
    said = list(returned)
    advantages = [math.nan if value is None else _checked(value) for value in said]
    if len(advantages) != len(counted):
        raise ConfigError(
            f"the estimator returned {len(advantages)} advantages for the {len(counted)} rollouts of task "
            f"{quoted(tree.task.id)}: return one for each, None where it is not trained"
        )
    found = dict(zip((chosen.rollout for chosen in counted), advantages, strict=True))
    return [found.get(chosen.rollout, math.nan) for chosen in rollouts]


def _checked(advantage: Any) -> float:
    # Numbers of numpy and torch are no float by type.
    try:
        value = math.inf if isinstance(advantage, str | bytes | bool) else float(advantage)
    except (TypeError, ValueError, OverflowError):
        value = math.inf
    if not (math.isnan(value) or abs(value) <= LARGEST):
        raise ConfigError(f"the estimator returned {short_repr(advantage)}: an advantage is a finite number, or None")
    return value


def _trained_tokens(tree: Tree, turn: int) -> int:
    """Count a turn's sampled token ids, or its reported tokens without ids; UsageError where neither is known."""
    known = tree.core.tokens_of(turn)
    if known is not None:
        flags = bytes(known.flags)
        return len(flags) - sum(flags.count(flag) for flag in set(flags) if flag & (SAMPLED | SYNTHETIC) != SAMPLED)
    reported = tree.core.node(turn).generated
    if reported == 0:
        message = tree.node(turn).message
        reported = None if message.get("content") or message.get("tool_calls") else 0
    if reported is None:
        raise UsageError(
            f"task {quoted(tree.task.id)}: how many tokens turn {turn} has is not known, and whiten='batch' counts "
            "tokens: say whiten='none', or run it on a server that reports usage"
        )
    return reported


def _scored(tree: Tree, rollout: int, calls: AgentCalls | None) -> list[_Scored]:
    """Return the turns, or the active agent calls, of a rollout that are compared."""
    if calls is None:
        return [_Scored(node, turn) for turn, node in enumerate(turns_of(tree, rollout))]
    return [_Scored(call.node, call.turn, call.penalty) for call in calls.of(rollout) if call.active]
