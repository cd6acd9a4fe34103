"""Models by name, and the behaviour sim-team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline._internal.registry import Registry
from trunkline.errors import ConfigError
from trunkline.sim.model.agents import agent, seek, solver, state_confidence
from trunkline.sim.model.choices import PRESETS
from trunkline.sim.model.episode import OFFER, find_subject, forms_in
from trunkline.sim.model.generation import Disagreement, Mind
from trunkline.sim.model.writers import judge, picker, proposed, reporter, verifier, writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.sim.model.chat_template import Conversation
    from trunkline.sim.model.choices import Dials
    from trunkline.sim.model.generation import Draft, Sampling


__all__ = ["MODELS", "Model", "find_model", "reply", "team"]


_SEVERAL: Final = 2


def team(conversation: Conversation, mind: Mind) -> Draft:
    """Play the part that the prompt asks for.

    A verdict, where that is the last form the prompt describes; else a search, an answer, or either; without a form a
    synthesis of several unjudged answers, or an own answer.
    """
    text = conversation.said("system", "user")
    forms = forms_in(text)
    if forms.verdict > max(forms.search, forms.answer):
        return verifier(conversation, mind)
    if conversation.tools:
        return agent(conversation, mind)
    if forms.search >= 0:
        return seek(conversation, mind, answers=forms.answer >= 0)
    if len(proposed(text)) >= _SEVERAL and not OFFER.search(text):
        return writer(conversation, mind)
    if find_subject(conversation).chain is not None:
        return seek(conversation, mind, searches=False)
    return solver(conversation, mind)


MODELS: Final[Registry[Callable[[Conversation, Mind], Draft]]] = Registry(
    "model",
    {
        "sim-agent": agent,
        "sim-tagged": seek,
        "sim-verifier": verifier,
        "sim-solver": solver,
        "sim-writer": writer,
        "sim-judge": judge,
        "sim-reporter": reporter,
        "sim-team": team,
        "sim-picker": picker,
    },
)
"""Every behaviour, by the name that a request asks for."""


class Model(NamedTuple):
    """A behaviour and its dials."""

    behaviour: str
    dials: Dials


def find_model(name: str, default: Dials) -> Model:
    """The model of a name in ``MODELS``, which may end in a colon and a preset; else the default dials hold.

    Raises:
        ConfigError: There is no such model or preset.
    """
    behaviour, colon, preset = name.partition(":")
    if behaviour not in MODELS:
        raise ConfigError(f"the model {name!r} does not exist: {MODELS.unknown(behaviour)}")
    if not colon:
        return Model(behaviour, default)
    if preset not in PRESETS:
        raise ConfigError(f"the model {name!r} does not exist; presets are {', '.join(PRESETS)}")
    return Model(behaviour, PRESETS[preset])


def reply(model: Model, conversation: Conversation, sampling: Sampling, digest: bytes) -> Draft:
    """One reply, a function of its arguments alone; ``digest`` is that of the conversation."""
    mind = Mind(model.behaviour, digest, model.dials, sampling)
    while True:
        try:
            draft = MODELS[model.behaviour](conversation, mind)
            state_confidence(draft, conversation)
            return draft  # noqa: TRY300 - what it says last may disagree as well
        except Disagreement:
            mind.tries += 1
