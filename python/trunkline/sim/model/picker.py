"""``sim-picker``: picks one of several answers by what their reports say, and reports on a try where there are none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.errors import ConfigError
from trunkline.sim.model.belief import walk
from trunkline.sim.model.draft import Draft
from trunkline.sim.model.episode import facts_in, find_subject
from trunkline.sim.model.verdict import normal
from trunkline.sim.model.writer import write_report
from trunkline.sim.world import arithmetic
from trunkline.sim.world.language import NAME, RELATIONS, Fact, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.sim.model.chat import Conversation
    from trunkline.sim.model.mind import Mind

__all__ = ["picker"]

_CANDIDATE: Final = re.compile(r'<candidate number="(\d{1,4})"([^<>]*)>(.*?)</candidate>', re.DOTALL)
_TRIES: Final = re.compile(r'tries="(\d{1,4})"')
_ANSWER: Final = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_REPORT: Final = re.compile(r"<report([^<>]*)>(.*?)</report>", re.DOTALL)
_LISTED: Final = {
    name: re.compile(
        re.escape(relation.phrase).replace(r"\{x\}", f"({NAME})") + rf" is given as ({NAME}|[12][0-9]{{3}});"
    )
    for name, relation in RELATIONS.items()
}
"""How the reports of ``sim-writer`` list facts, by relation."""

_NONE: Final = "None of these answers can be right.\n<answer>unknown</answer>"


class _Candidate(NamedTuple):
    """One of the answers that can be picked.

    Attributes:
        number: Its number.
        answer: The answer, as it is compared.
        reports: What its reports say.
        weight: The tries behind it, and its clear reports.
    """

    number: str
    answer: str
    reports: Sequence[str]
    weight: int


def picker(conversation: Conversation, mind: Mind) -> Draft:
    """Pick one of the numbered candidates that a prompt shows.

    What is right is worked out from the reports: a word problem is solved again, a question's chain is followed through
    the facts that they state, or its last hop where the others are not in them. Where that leads to no candidate, the
    one counts as right that most tries and clear reports stand behind. Another is picked at the rate at which a verdict
    accepts what is wrong, and at the rate of broken calls none of them is. A prompt without candidates is to be
    reported on: what it states along the question's chain, and the answer.
    """
    text = "\n".join(message.text for message in conversation.messages if message.role == "user")
    candidates = [_read(*match.groups()) for match in _CANDIDATE.finditer(text)]
    if not candidates:
        return write_report(conversation, mind, along=True)
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    right = _right(conversation, candidates)
    draft.say("<think>\n")
    mind.fill(draft)
    draft.say("\n</think>\n")
    if draft.agrees(mind.accident(mind.dials.malformed), _NONE):
        draft.say(_NONE)
        return draft
    draft.say("I go by what the reports found.\n<choice>")
    wrong = mind.dials.false_accept / max(len(candidates) - 1, 1)
    masses = {one.number: wrong for one in candidates if one is not right}
    masses[right.number] = 1 - mind.dials.false_accept if masses else 1.0
    draft.choose(mind, {number: mass for number, mass in sorted(masses.items()) if mass > 0})
    draft.say("</choice>")
    return draft


def _read(number: str, facts: str, inside: str) -> _Candidate:
    answer, tries = _ANSWER.search(inside), _TRIES.search(facts)
    reports = _REPORT.findall(inside)
    clear = sum("no" not in marks for marks, _ in reports)
    weight = (int(tries[1]) if tries else 1) + clear
    return _Candidate(number, normal(answer[1] if answer else ""), [said for _, said in reports], weight)


def _right(conversation: Conversation, candidates: Sequence[_Candidate]) -> _Candidate:
    """The candidate that the evidence is for."""
    subject = find_subject(conversation)
    wanted: set[str] = set()
    if subject.chain is not None:
        texts = [text for one in candidates for report in one.reports for text in (report, _given(report))]
        found = walk(subject.chain, texts)
        if found is not None:
            wanted = {normal(name) for name in found[1]}
        else:
            last = subject.chain.relations[-1]
            wanted = {normal(fact.object) for text in texts for fact in facts_in(text) if fact.relation == last}
    elif subject.steps is not None:
        try:
            wanted = {str(arithmetic.evaluate(subject.steps)[-1])}
        except ConfigError:
            wanted = set()
    supported = [one for one in candidates if one.answer in wanted]
    return max(supported or candidates, key=lambda one: (one.weight, -int(one.number)))


def _given(report: str) -> str:
    """What a report lists as given, in the sentences in which documents state it."""
    facts = [
        Fact(match[1], relation, match[2])
        for relation, pattern in _LISTED.items()
        for match in pattern.finditer(report)
    ]
    return " ".join(sentence(fact, 0) for fact in facts)
