"""``sim-solver``: works word problems out, one step after the other, and ends with a boxed answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.errors import ConfigError
from trunkline.sim.model.belief import best_guess
from trunkline.sim.model.choice import Point, options
from trunkline.sim.model.draft import Draft
from trunkline.sim.model.episode import Episode, find_subject
from trunkline.sim.world.arithmetic import Step, evaluate

if TYPE_CHECKING:
    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.mind import Mind

__all__ = ["solve", "solver"]

_SIGNS: Final = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


def solver(conversation: Conversation, mind: Mind) -> Draft:
    """Solve the problem, or answer a question of the language from what is in view."""
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    subject = find_subject(conversation)
    if subject.steps is not None:
        return solve(draft, subject.steps, mind)
    draft.say("<think>\n")
    mind.fill(draft)
    draft.say("\n</think>\n")
    answer = "unknown"
    if subject.chain is not None:
        answer = best_guess(Episode(conversation, subject.chain), mind)
    draft.say(f"The answer is \\boxed{{{answer}}}.\n<answer>{answer}</answer>")
    return draft


def solve(draft: Draft, steps: tuple[Step, ...], mind: Mind) -> Draft:
    """Write a solution step by step; a wrong total is carried on.

    Args:
        draft: The reply.
        steps: The problem, the start first.
        mind: What to draw with.
    """
    key = "\x1f".join(f"{step.op} {step.value}" for step in steps)
    total = steps[0].value
    draft.say("<think>\n")
    mind.fill(draft)
    draft.say(f"At first there are {total}.")
    for index, step in enumerate(steps[1:]):
        point = Point(key, index, len(steps) - 1, False, False)
        masses = options(point, str(_apply(total, step)), _slips(total, step), mind.dials)
        draft.say(f"\nStep {index + 1}: {total} {_SIGNS[step.op]} {step.value} =")
        chosen = draft.choose(mind, {f" {option}": mass for option, mass in masses.items()}).chosen
        draft.believe(masses[chosen[1:]])
        total = int(chosen)
        draft.say(".")
    draft.say(f"\n</think>\nThe answer is \\boxed{{{total}}}.\n<answer>{total}</answer>")
    return draft


def _apply(total: int, step: Step) -> int:
    try:
        return evaluate((Step("start", total), step))[-1]
    except ConfigError:
        return total // max(step.value, 1)


def _slips(total: int, step: Step) -> list[str]:
    """Results one can get wrong: a step too far, a digit off, the operation mistaken."""
    right = _apply(total, step)
    mistaken = {
        "add": total - step.value,
        "subtract": total + step.value,
        "multiply": total + step.value,
        "divide": total - step.value,
    }
    slips = [right + 1, right - 1, mistaken[step.op], right + 10, right - 10]
    return [str(abs(slip)) for slip in slips if abs(slip) != right]
