"""``sim-verifier`` and ``sim-judge``: say yes or no in the form that the conversation offers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from trunkline.errors import ConfigError
from trunkline.sim.model.belief import walk
from trunkline.sim.model.draft import Draft
from trunkline.sim.model.episode import Episode, find_subject
from trunkline.sim.model.forms import NO, OFFER, YES, forms_in, is_form
from trunkline.sim.world import arithmetic

if TYPE_CHECKING:
    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.mind import Mind

__all__ = ["judge", "normal", "proposed", "verifier"]

_FIELD: Final = re.compile(r"\b(correct|judgement|judgment|verdict)\b\s*:\s*[\"']?(?:yes|no)\b", re.IGNORECASE)
_ANSWER: Final = re.compile(r"<answer>\s*(.{1,200}?)\s*</answer>|\\boxed\{([^{}]{1,200})\}", re.DOTALL)
_REFERENCE: Final = re.compile(
    r"(?:reference|gold|expected|ground[ _-]?truth|correct[ _]answer)[^:\n<>]{0,24}:\s*([^\n]+)"
    r"|<(reference|gold|expected|truth)>\s*(.*?)\s*</\2>",
    re.IGNORECASE | re.DOTALL,
)
_CANDIDATE: Final = re.compile(
    r"(?:response|prediction|candidate|submitted|submission|student|model|given|proposed|final)"
    r"(?:[ _'a-z]{0,16}answer)?[ \t]*:\s*([^\n]+)|^[ \t*]*answer[ \t*]*:\s*([^\n]+)"
    r"|<(response|prediction|candidate|submission)>\s*(.*?)\s*</\3>",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_ARTICLE: Final = re.compile(r"\b(?:a|an|the)\b")


def verifier(conversation: Conversation, mind: Mind) -> Draft:
    """Say whether the answer proposed is right, or, where none is, whether what was found suffices.

    What is right is worked out from the messages alone: a word problem is solved again, and a question's
    chain is followed through the facts in view, from the first search in view on. A word problem needs no
    searches, where these are what the verdict is about. The verdict errs at the rates of the dials.
    """
    subject = find_subject(conversation)
    said = "\n".join(message.text for message in conversation.messages if message.role != "system")
    answers = proposed(said)
    accept = False
    if subject.chain is not None:
        texts = [m.text for m in conversation.messages if m.role in {"user", "tool"}]
        found = walk(subject.chain, texts) or walk(Episode(conversation, subject.chain).rest, texts)
        if found is not None:
            accept = not answers or normal(answers[-1]) in {normal(name) for name in found[1]}
    elif subject.steps is not None and not answers:
        accept = forms_in(said).search >= 0
    elif subject.steps is not None:
        try:
            accept = normal(answers[-1]) == str(arithmetic.evaluate(subject.steps)[-1])
        except ConfigError:
            accept = False
    return _verdict(conversation, mind, accept=accept)


def judge(conversation: Conversation, mind: Mind) -> Draft:
    """Say whether a response agrees with a reference, both given in the messages."""
    text = "\n".join(message.text for message in conversation.messages if message.role == "user")
    reference = _last(_REFERENCE, text)
    candidate = _last(_CANDIDATE, text)
    if candidate is not None and (inside := proposed(candidate)):
        candidate = inside[-1]
    elif candidate is None:
        answers = proposed(text)
        candidate = answers[-1] if answers else None
    accept = False
    if reference is not None and candidate is not None:
        wanted = [normal(part) for part in re.split(r"\s*[|;]\s*", reference) if normal(part)]
        accept = any(f" {part} " in f" {normal(candidate)} " for part in wanted)
    return _verdict(conversation, mind, accept=accept)


def proposed(text: str) -> list[str]:
    """The answers a text marks with answer tags or boxes, in order; placeholders of a prompt are left out."""
    found = [match[1] or match[2] for match in _ANSWER.finditer(text)]
    return [answer.strip() for answer in found if not is_form(answer)]


def normal(text: str) -> str:
    """A text for comparison: no case, punctuation, articles or surplus space."""
    kept = re.sub(r"[^\w\s.-]|\.(?!\d)", " ", text.casefold())
    return " ".join(_ARTICLE.sub(" ", kept).split())


def _verdict(conversation: Conversation, mind: Mind, *, accept: bool) -> Draft:
    """Write the verdict; its log-prob is that of accepting or rejecting at the dials' rates."""
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    text = "\n".join(m.text for m in conversation.messages if m.role in {"system", "user"})
    offers = list(OFFER.finditer(text))
    yes, no, before, after = "yes", "no", "", ""
    if offers:
        tag = offers[-1][1]
        words = [word for o in offers if o[1] == tag for word in (o[2], o[3]) if word]
        yes = next((word for word in words if word.lower() in YES), "yes")
        no = next((word for word in words if word.lower() in NO), "no")
        before, after = f"<{tag}>", f"</{tag}>"
    elif field := _FIELD.search(text):
        before = f"{field[1]}: "
    draft.say("<think>\n")
    mind.fill(draft)
    draft.say(f"\n</think>\n{before}")
    wrong = mind.dials.false_reject if accept else mind.dials.false_accept
    masses = {yes: 1 - wrong, no: wrong} if accept else {yes: wrong, no: 1 - wrong}
    draft.choose(mind, {option: mass for option, mass in masses.items() if mass > 0})
    draft.say(after)
    return draft


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    found = None
    for match in pattern.finditer(text):
        groups = [group for group in match.groups() if group]
        found = groups[-1] if groups else found
    return found.strip() if found else None
