"""Table of agent calls."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from trunkline._internal.validation import check_bool, check_choice, check_int, short_repr
from trunkline.errors import ConfigError
from trunkline.llm.pricing import llm_in, named
from trunkline.llm.request import model_in
from trunkline.train.advantages import Advantages, TurnValue, merged
from trunkline.train.selection import AgentCall, AgentCalls, Chosen, Rules, again, draw_of, sent
from trunkline.tree.records import version_in
from trunkline.tree.tokens import generated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trunkline.train.advantages import Estimator
    from trunkline.tree.views import Tree
    from trunkline.types import Message


Column: TypeAlias = "array[Any] | list[Any]"
"""Numbers, or texts."""


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One agent call.

    Attributes:
        task: Id of the task.
        group: Number of the task's tree among those that were given.
        rollout: The rollout, in its tree; of a call that several share and that stands here once, the first of those
            trained.
        node: The call's turn in its tree.
        agent: The role that was asked.
        model: The model.
        llm: The name of the LLM that was asked for it; empty for the one without a name.
        step: Which step it belongs to, from 1.
        turn: Which turn of the rollout's path it is, from 0.
        draw: Which sample of its state it is, as in the rollout's fork path.
        active: Whether anything depended on it.
        valid: Whether what was said is a valid action.
        reward: The rollout's reward, with the penalties of filters; of a call that stands here once, the mean over the
            rollouts that count. NaN while unscored, never 0.
        penalty: What its role subtracts from that, because the action is not valid.
        score: S, the reward less the penalty.
        advantage: Its advantage; 0 where it is not trained.
        weight: How many rollouts it is trained for; 0 where it is not trained.
        trained: Whether it is trained: it was active, no filter masked it, and it has a reward.
        pad: Whether it is a copy that fills up: it is not trained, and counts nowhere.
        length: Tokens of the reply, ids where they are known, else as the server reported; None where neither is.
        weights: The version of the weights that it was asked under; None where unknown.
        conversation: The messages that were sent, a JSON array.
        reply: The turn's own message, JSON.
        aside: What the model said that is not sent again, such as its reasoning.
    """

    task: str
    group: int
    rollout: int
    node: int
    agent: str
    model: str
    llm: str
    step: int
    turn: int
    draw: int
    active: bool
    valid: bool
    reward: float
    penalty: float
    score: float
    advantage: float
    weight: int
    trained: bool
    pad: bool
    length: int | None
    weights: str | None
    conversation: msgspec.Raw
    reply: msgspec.Raw
    aside: str | None

    @property
    def messages(self) -> list[Message]:
        """What was sent, and the reply."""
        before: list[Message] = msgspec.json.decode(self.conversation)
        return [*before, msgspec.json.decode(self.reply)]


_TEXTS: Final = {"conversation", "reply", "aside"}
_CODE_OF: Final = {"str": "", "str | None": "", "int": "I", "bool": "B", "float": "d", "int | None": "q"}
_CODES: Final = {name: _CODE_OF[kind] for name, kind in Row.__annotations__.items() if name not in _TEXTS}
"""The type of each column's array; a list where it is of texts."""

_FLAGS: Final = tuple(name for name, code in _CODES.items() if code == "B")
_UNKNOWN: Final = -1
_MOST: Final = 2**20
"""The largest divisor: so many rows more at most."""


class Rows:
    """Agent calls, tree by tree, rollout by rollout and in call order: a table, and a collection of ``Row``.

    ``rows["advantage"]`` is a column: a read-only buffer that ``numpy.asarray`` takes without a copy, of f64
    (``reward``, ``penalty``, ``score``, ``advantage``), u8 (``active``, ``valid``, ``trained``, ``pad``), i64
    (``length``, -1 where not known) or u32 (other numbers); or a list of texts (``task``, ``agent``, ``model``,
    ``llm``, ``weights``).

    Iterating reads the trees once more, one at a time, for what was sent and said. The table itself holds no text of a
    conversation.

    Args:
        trees: The trees, which can be gone through more than once.
        columns: One of each name, all of one length; their groups never fall.
        pads: How many of the last rows fill up; they are copies of the first ones.
    """

    def __init__(self, trees: Iterable[Tree], columns: Mapping[str, Column], pads: int = 0) -> None:
        self._trees = trees
        self._columns = columns
        self._real = len(columns["group"]) - pads

    @classmethod
    def of(cls, trees: Iterable[Tree], facts: Iterable[Mapping[str, Any]]) -> Rows:
        """Make a table of the facts of its rows; ``pad`` is 0."""
        columns: dict[str, Column] = {name: array(code) if code else [] for name, code in _CODES.items()}
        for one in facts:
            for name, column in columns.items():
                column.append(one.get(name, 0))
        return cls(trees, columns)

    def __len__(self) -> int:
        return len(self._columns["group"])

    def __getitem__(self, name: str) -> memoryview | list[Any]:
        """Return a column.

        Raises:
            ConfigError: There is no column of that name.
        """
        if not isinstance(name, str) or name not in _CODES:
            raise ConfigError(f"rows have no column {short_repr(name)}; they have {', '.join(_CODES)}")
        column = self._columns[name]
        return list(column) if isinstance(column, list) else memoryview(column).toreadonly()

    def __iter__(self) -> Iterator[Row]:
        first: list[Row] = []
        pads = len(self) - self._real
        for row in self._read():
            if len(first) < pads:
                first.append(row)
            yield row
        for place in range(pads):
            yield msgspec.structs.replace(first[place % self._real], pad=True, trained=False, weight=0, advantage=0.0)

    def _read(self) -> Iterator[Row]:
        place, groups = 0, self._columns["group"]
        for group, tree in enumerate(self._trees):
            if place == self._real:
                return
            while place < self._real and groups[place] == group:
                yield self._row(tree, place)
                place += 1

    def _row(self, tree: Tree, place: int) -> Row:
        facts = {name: column[place] for name, column in self._columns.items()}
        facts |= {name: bool(facts[name]) for name in _FLAGS}
        if facts["length"] == _UNKNOWN:
            facts["length"] = None
        node, core = facts["node"], tree.core
        said = msgspec.Raw(core.message(node))
        return Row(**facts, conversation=msgspec.Raw(sent(core, node)), reply=said, aside=core.aside(node))

    def by_model(self) -> dict[str, Rows]:
        """Return the rows of each model, by its name, in the order in which they first come; copies are left out.

        What is asked of an LLM with a name is a model of its own, called ``LLM/MODEL``: two servers may well give other
        weights the same name.
        """
        places: dict[str, list[int]] = {}
        for place, served in enumerate(zip(self._columns["llm"], self._columns["model"], strict=True)):
            if place < self._real:
                places.setdefault(named(*served), []).append(place)
        return {model: self._at(found) for model, found in places.items()}

    def padded(self, divisor: int | Mapping[str, int]) -> dict[str, Rows]:
        """Return the rows of each model, filled up to a multiple of a divisor, as groups of trainer processes need it.

        What fills up are copies of the model's first rows, behind all others, with ``pad`` true and no weight. They
        are made when everything has been compared, so they are in no mean, and change none.

        Args:
            divisor: What the number of rows is to be divisible by; or that of each model, by its name there.

        Raises:
            ConfigError: A divisor is no whole number of at least 1, or a model has none.
        """
        return {model: rows._filled(_divisor(divisor, model)) for model, rows in self.by_model().items()}

    def _filled(self, divisor: int) -> Rows:
        pads = -len(self) % divisor
        filled = self._at([*range(len(self)), *(place % len(self) for place in range(pads))], pads)
        for name, value in (("pad", 1), ("trained", 0), ("weight", 0), ("advantage", 0.0)):
            for place in range(len(self), len(self) + pads):
                filled._columns[name][place] = value
        return filled

    def _at(self, places: Sequence[int], pads: int = 0) -> Rows:
        columns: dict[str, Column] = {}
        for name, column in self._columns.items():
            values = [column[place] for place in places]
            columns[name] = array(_CODES[name], values) if _CODES[name] else values
        return Rows(self._trees, columns, pads)

    def __repr__(self) -> str:
        pads = len(self) - self._real
        return f"<Rows: {self._real} agent calls{f' and {pads} that fill up' if pads else ''}>"


def _divisor(given: int | Mapping[str, int], model: str) -> int:
    if not isinstance(given, Mapping):
        return check_int("divisor", given, 1, _MOST)
    if model not in given:
        raise ConfigError(f"divisor has none for the model {short_repr(model)}: give each model its own")
    return check_int(f"divisor of {short_repr(model)}", given[model], 1, _MOST)


_NOTHING: Final = TurnValue(0.0, trained=False)


def rows(
    run: Iterable[Tree],
    *,
    shared: Literal["once", "repeat"],
    estimator: Estimator = "dr_mas",
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
        estimator: A preset of ``trunkline.train.presets``, or a function of the trajectories of one group
            that count (a list of ``trunkline.Trajectory``) that returns an advantage for each, None for none.
            ``dr_mas`` compares the calls of one agent in one group: S less their mean, divided by their sample
            deviation; ``scale="none"`` leaves the division out, and ``centre="leave_one_out", scale="none"`` is RLOO. A
            call that is alone gets S.
        only_active: Whether calls that nothing depended on are left out. They are never trained, nor compared.
        censored: ``mask`` or ``keep`` for rollouts that were cut off; a group that has such is refused without it.
        on_failed: ``mask`` trains nothing of rollouts that broke, ``drop_group`` leaves their groups out.
        keep_masked: Whether calls that are not trained are listed.
        options: Options of the preset.

    Raises:
        ConfigError: A setting has a value it cannot have.
        ArgumentError: The estimator does not take these options or rewards.
        UsageError: A group has rollouts that were cut off, and ``censored`` is not said; or the estimator whitens over
            tokens, and of a trained turn their number is not known.
    """
    check_choice("shared", shared, "once", "repeat")
    check_bool("only_active", only_active)
    check_bool("keep_masked", keep_masked)
    trees = again(run)
    advantages = Advantages(trees, Rules(censored, on_failed).check(), estimator, options, by_call=True)
    facts = _facts(trees, advantages, once=shared == "once")
    kept = (one for one in facts if (one["active"] or not only_active) and (one["trained"] or keep_masked))
    return Rows.of(trees, kept)


def _facts(trees: Iterable[Tree], advantages: Advantages, *, once: bool) -> Iterator[dict[str, Any]]:
    for group, tree in enumerate(trees):
        calls = AgentCalls(tree.core)
        rows: dict[object, tuple[AgentCall, list[tuple[Chosen, TurnValue]]]] = {}
        for chosen in advantages.rollouts[group]:
            compared = 0
            for call in calls.of(chosen.rollout):
                worth = advantages.of(group, chosen, compared, call.node) if call.active else _NOTHING
                compared += call.active
                rows.setdefault(call if once else (chosen.rollout, call), (call, []))[1].append((chosen, worth))
        for call, made in rows.values():
            yield {"task": tree.task.id, "group": group} | _of_call(tree, call, made)


def _of_call(tree: Tree, call: AgentCall, made: list[tuple[Chosen, TurnValue]]) -> dict[str, Any]:
    core, worth = tree.core, merged(made)
    chosen = next((one for one, value in made if value.trained), made[0][0])
    facts, length = core.node(call.node), generated(core, call.node)
    return worth | {
        "rollout": chosen.rollout,
        "node": call.node,
        "agent": facts.agent,
        "model": model_in(facts.namespace),
        "llm": llm_in(facts.namespace),
        "step": call.step,
        "turn": call.turn,
        "draw": draw_of(core.rollout(chosen.rollout).path, call.turn),
        "active": call.active,
        "valid": call.valid,
        "penalty": call.penalty,
        "score": worth["reward"] - call.penalty,
        "length": -1 if length is None else length,
        "weights": version_in(facts.namespace),
    }
