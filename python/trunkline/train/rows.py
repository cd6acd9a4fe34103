"""Training rows: every agent call of a run, scored and compared with those of the same agent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from trunkline.bounds import choice, shown
from trunkline.errors import ConfigError
from trunkline.llm.names import llm_in
from trunkline.llm.request import model_in
from trunkline.train.advantages import Advantages, Worth
from trunkline.train.calls import Call, Calls
from trunkline.train.selection import Chosen, Rules, again
from trunkline.train.table import Rows
from trunkline.tree.tokens import generated
from trunkline.tree.weights import version_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trunkline.tree.tree import Tree

__all__ = ["rows"]

_NOTHING: Final = Worth(0.0, trained=False)


def rows(
    run: Iterable[Tree],
    *,
    shared: Literal["once", "repeat"],
    estimator: str = "dr_mas",
    only_active: bool = True,
    censored: Literal["mask", "keep"] | None = None,
    on_failed: Literal["mask", "drop_group"] = "mask",
    keep_masked: bool = True,
    **options: str | float | bool,
) -> Rows:
    """Take a run apart into agent calls, as teams are trained (Dr.MAS, arXiv 2602.08847).

    Each call of each rollout that got a reply is a row; of a plain agent, each turn. Its score S is the rollout's
    reward less the penalty of an action that is not valid. Only active calls are compared. An estimator whose scopes
    name ``agent`` or ``anchor``, one that has steps, or one that is given ``unit``, compares calls, and every call is
    an observation. Any other compares rollouts: each counts with the mean S of its calls, which all get its value.

    Args:
        run: A run, or trees.
        shared: A call that several rollouts share stands here ``once``, with their mean advantage and their number as
            its weight; or ``repeat``, once for each of them. The sum of advantage times weight is the same.
        estimator: A preset of ``trunkline._core.presets()``. ``dr_mas`` compares the calls of one agent in one group:
            S less their mean, divided by their sample deviation; ``scale="none"`` leaves the division out, and
            ``centre="leave_one_out", scale="none"`` is RLOO. A call that is alone gets S.
        only_active: Whether calls that nothing depended on are left out. They are never trained, nor compared.
        censored: ``mask`` or ``keep`` for rollouts that were cut off; a group that has such is refused without it.
        on_failed: ``mask`` trains nothing of rollouts that broke, ``drop_group`` leaves their groups out.
        keep_masked: Whether calls that are not trained are listed.
        options: Options of the preset.

    Raises:
        ConfigError: A setting has a value it cannot have.
        ArgumentError: The estimator does not take these options or rewards.
        UsageError: A group has rollouts that were cut off, and ``censored`` is not said.
    """
    choice("shared", shared, "once", "repeat")
    for name, flag in (("only_active", only_active), ("keep_masked", keep_masked)):
        if not isinstance(flag, bool):
            raise ConfigError(f"{name} must be true or false, not {shown(flag)}")
    trees = again(run)
    advantages = Advantages(trees, Rules(censored, on_failed).check(), estimator, options, by_call=True)
    facts = _facts(trees, advantages, once=shared == "once")
    return Rows.of(
        trees,
        (one for one in facts if (one["active"] or not only_active) and (one["trained"] or keep_masked)),
    )


class _Made(NamedTuple):
    """A call that one rollout made."""

    chosen: Chosen
    call: Call
    worth: Worth


def _facts(trees: Iterable[Tree], advantages: Advantages, *, once: bool) -> Iterator[dict[str, Any]]:
    """Yield what the columns hold of each row."""
    for group, tree in enumerate(trees):
        calls = Calls(tree.core)
        rows: dict[object, list[_Made]] = {}
        for chosen in advantages.rollouts[group]:
            compared = 0
            for call in calls.of(chosen.rollout):
                worth = advantages.of(group, chosen, compared, call.node) if call.active else _NOTHING
                compared += call.active
                rows.setdefault(call if once else (chosen.rollout, call), []).append(_Made(chosen, call, worth))
        for made in rows.values():
            yield {"task": tree.task.id, "group": group} | _of_call(tree, made)


def _of_call(tree: Tree, made: list[_Made]) -> dict[str, Any]:
    """Describe a call for the rollouts that it stands for."""
    core = tree.core
    trained = [one for one in made if one.worth.trained]
    chosen, call, _ = (trained or made)[0]
    facts, length = core.node(call.node), generated(core, call.node)
    path = core.rollout(chosen.rollout).path
    reward = _mean([one.chosen.reward for one in made if one.chosen.counted or len(made) == 1])
    return {
        "rollout": chosen.rollout,
        "node": call.node,
        "agent": facts.agent,
        "model": model_in(facts.namespace),
        "llm": llm_in(facts.namespace),
        "step": call.step,
        "turn": call.turn,
        "draw": dict(zip(path[::2], path[1::2], strict=True)).get(call.turn, 0),
        "active": call.active,
        "valid": call.valid,
        "reward": reward,
        "penalty": call.penalty,
        "score": reward - call.penalty,
        "advantage": _mean([one.worth.advantage for one in trained]) if trained else 0.0,
        "weight": len(trained),
        "trained": bool(trained),
        "length": -1 if length is None else length,
        "weights": version_in(facts.namespace),
    }


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
