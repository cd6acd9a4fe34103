"""The models by name, and one reply of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.errors import ConfigError
from trunkline.sim.model.agent import agent
from trunkline.sim.model.dials import PRESETS
from trunkline.sim.model.draft import Disagreement
from trunkline.sim.model.mind import Mind
from trunkline.sim.model.picker import picker
from trunkline.sim.model.reporter import reporter
from trunkline.sim.model.solver import solver
from trunkline.sim.model.sure import state_confidence
from trunkline.sim.model.tagged import tagged
from trunkline.sim.model.team import team
from trunkline.sim.model.verdict import judge, verifier
from trunkline.sim.model.writer import writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.dials import Dials
    from trunkline.sim.model.draft import Draft
    from trunkline.sim.model.mind import Sampling

__all__ = ["MODELS", "Model", "find_model", "reply"]

MODELS: Final[dict[str, Callable[[Conversation, Mind], Draft]]] = {
    "sim-agent": agent,
    "sim-tagged": tagged,
    "sim-verifier": verifier,
    "sim-solver": solver,
    "sim-writer": writer,
    "sim-judge": judge,
    "sim-reporter": reporter,
    "sim-team": team,
    "sim-picker": picker,
}
"""Every behaviour, by the name that a request asks for."""


class Model(NamedTuple):
    """A behaviour and how it errs."""

    behaviour: str
    dials: Dials


def find_model(name: str, default: Dials) -> Model:
    """The model that a request names.

    Args:
        name: A name in ``MODELS``, or such a name, a colon and the name of a preset.
        default: The dials of a name without a preset.

    Raises:
        ConfigError: There is no such model or preset.
    """
    behaviour, colon, preset = name.partition(":")
    if behaviour not in MODELS:
        raise ConfigError(f"the model {name!r} does not exist; there are {', '.join(MODELS)}")
    if not colon:
        return Model(behaviour, default)
    if preset not in PRESETS:
        raise ConfigError(f"the model {name!r} does not exist; presets are {', '.join(PRESETS)}")
    return Model(behaviour, PRESETS[preset])


def reply(model: Model, conversation: Conversation, sampling: Sampling, digest: bytes) -> Draft:
    """One reply, a function of its arguments alone.

    Args:
        model: Who replies.
        conversation: What it is given.
        sampling: How to sample, seed included.
        digest: ``chat.digest`` of the conversation; computed once for all choices of a request.
    """
    mind = Mind(model.behaviour, digest, model.dials, sampling)
    while True:
        try:
            draft = MODELS[model.behaviour](conversation, mind)
            state_confidence(draft, conversation)
            return draft  # noqa: TRY300 - what it says last may disagree as well
        except Disagreement:
            mind.tries += 1
