"""The behaviours sim-verifier, sim-judge, sim-reporter, sim-writer and sim-picker."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.errors import ConfigError
from trunkline.sim.model.belief import best_guess, walk
from trunkline.sim.model.choices import Point, options
from trunkline.sim.model.episode import (
    NO,
    OFFER,
    YES,
    Episode,
    Names,
    chain_key,
    facts_in,
    find_subject,
    forms_in,
    is_form,
)
from trunkline.sim.model.generation import Draft
from trunkline.sim.world import arithmetic
from trunkline.sim.world.language import NAME, RELATIONS, Fact, sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trunkline.sim.model.chat_template import Conversation
    from trunkline.sim.model.generation import Mind
    from trunkline.sim.world.arithmetic import Step
    from trunkline.sim.world.language import Chain


__all__ = ["judge", "picker", "proposed", "reporter", "verifier", "writer"]


_VERDICT_FIELD: Final = re.compile(r"\b(correct|judgement|judgment|verdict)\b\s*:\s*[\"']?(?:yes|no)\b", re.IGNORECASE)
_VERDICT_ANSWER: Final = re.compile(r"<answer>\s*(.{1,200}?)\s*</answer>|\\boxed\{([^{}]{1,200})\}", re.DOTALL)
_REFERENCE: Final = re.compile(
    r"(?:reference|gold|expected|ground[ _-]?truth|correct[ _]answer)[^:\n<>]{0,24}:\s*([^\n]+)"
    r"|<(reference|gold|expected|truth)>\s*(.*?)\s*</\2>",
    re.IGNORECASE | re.DOTALL,
)
_VERDICT_CANDIDATE: Final = re.compile(
    r"(?:response|prediction|candidate|submitted|submission|student|model|given|proposed|final)"
    r"(?:[ _'a-z]{0,16}answer)?[ \t]*:\s*([^\n]+)|^[ \t*]*answer[ \t*]*:\s*([^\n]+)"
    r"|<(response|prediction|candidate|submission)>\s*(.*?)\s*</\3>",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
_ARTICLE: Final = re.compile(r"\b(?:a|an|the)\b")


def verifier(conversation: Conversation, mind: Mind) -> Draft:
    """Say whether the last answer proposed is right, or, where none is, whether the texts in view suffice.

    A word problem is solved again and needs no searches; a question's chain is followed through the facts in view, from
    the first search on. The verdict errs at the rates of the dials.
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
        accept = normal(answers[-1]) == _total(subject.steps)
    return _verdict(conversation, mind, accept=accept)


def _total(steps: Sequence[Step]) -> str | None:
    """The answer of a word problem, None where it has none."""
    try:
        return str(arithmetic.evaluate(steps)[-1])
    except ConfigError:
        return None


def judge(conversation: Conversation, mind: Mind) -> Draft:
    """Say whether a response agrees with a reference, both given in the messages."""
    text = conversation.said("user")
    reference = _last(_REFERENCE, text)
    candidate = _last(_VERDICT_CANDIDATE, text)
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
    """The answers in answer tags or boxes, in order, without placeholders."""
    found = [match[1] or match[2] for match in _VERDICT_ANSWER.finditer(text)]
    return [answer.strip() for answer in found if not is_form(answer)]


def normal(text: str) -> str:
    """A text for comparison, without case, punctuation, articles and surplus space."""
    kept = re.sub(r"[^\w\s.-]|\.(?!\d)", " ", text.casefold())
    return " ".join(_ARTICLE.sub(" ", kept).split())


def _verdict(conversation: Conversation, mind: Mind, *, accept: bool) -> Draft:
    """Write the verdict in the form that the prompt offers, wrong at the dials' rates."""
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    text = conversation.said("system", "user")
    offers = list(OFFER.finditer(text))
    yes, no, before, after = "yes", "no", "", ""
    if offers:
        tag = offers[-1][1]
        words = [word for o in offers if o[1] == tag for word in (o[2], o[3]) if word]
        yes = next((word for word in words if word.lower() in YES), "yes")
        no = next((word for word in words if word.lower() in NO), "no")
        before, after = f"<{tag}>", f"</{tag}>"
    elif field := _VERDICT_FIELD.search(text):
        before = f"{field[1]}: "
    mind.think(draft, f"\n</think>\n{before}")
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


_HEADING: Final = re.compile(r"^(#{1,2}) ([^\n]+)$", re.MULTILINE)
_REPORT_FIELD: Final = re.compile(r"^(Plan|Methods|Reasoning|Answer):[ ]*", re.MULTILINE)
_WORDS: Final = re.compile(r"at most (\d{1,4}) words", re.IGNORECASE)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+")
_ANSWERED: Final = re.compile(r"</?answer>")
_USUAL: Final = 150
_LINE: Final = 24

_MOST_CALLS: Final = 8


class _Block(NamedTuple):
    level: int
    title: str
    body: str


def reporter(conversation: Conversation, mind: Mind) -> Draft:
    """Write a record: the plan, the calls and their results, the last reasoning and the answer.

    It continues an earlier record and keeps to the words that the instructions allow.
    """
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    mind.think(draft, "\n</think>\n")
    blocks = _blocks(conversation.said("user"))
    before = _fields(next((block.body for block in blocks if block.title == "Record so far"), ""))
    steps = [block for block in blocks if block.level > 1]
    if not steps and not before:
        draft.say("There is nothing in the messages that I could report.")
        return draft
    found = _WORDS.search(conversation.said("system"))
    words = int(found[1]) if found else _USUAL
    thoughts = [block.body for block in steps if block.title == "Thought"]
    plan = before.get("Plan") or (_sentences(thoughts[0], 0, 2) if thoughts else "not stated")
    reasoning = _sentences(thoughts[-1], -3, None) if thoughts else before.get("Reasoning", "not stated")
    given = next((block.body for block in blocks if block.title == "Answer given"), None)
    answers = proposed("\n".join(thoughts))
    answer = given or (answers[-1] if answers else before.get("Answer", "none yet"))
    answer = _first(answer, words // 5)
    plan, reasoning = _first(plan, words // 5), _first(reasoning, words // 4)
    room = words - sum(len(part.split()) for part in (plan, reasoning, answer)) - 4
    methods = _methods([line for line in before.get("Methods", "").splitlines() if line.strip()], _calls(steps), room)
    draft.say(f"Plan: {plan}\nMethods:{''.join(methods) or ' none.'}\nReasoning: {reasoning}\nAnswer: {answer}")
    return draft


def _headed(pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each heading with the text up to the next one."""
    matches = list(pattern.finditer(text))
    ends = [*(match.start() for match in matches), len(text)][1:]
    for match, end in zip(matches, ends, strict=True):
        yield match, text[match.end() : end]


def _blocks(text: str) -> list[_Block]:
    """The text under each heading, whose lines are indented."""
    found = []
    for match, body in _headed(_HEADING, text):
        lines = (line.removeprefix("  ") for line in body.split("\n"))
        found.append(_Block(len(match[1]), match[2].strip(), "\n".join(lines).strip()))
    return found


def _fields(record: str) -> dict[str, str]:
    return {match[1]: body.strip() for match, body in _headed(_REPORT_FIELD, record)}


def _calls(steps: Sequence[_Block]) -> list[str]:
    """A line for each call with the first line of its result."""
    lines: list[str] = []
    for place, block in enumerate(steps):
        if not block.title.startswith("Call of "):
            continue
        after = (later.body for later in steps[place + 1 :] if later.title == "Result")
        brought = next(iter(next(after, "").splitlines()), "nothing")
        lines.append(_first(f"- {block.title.removeprefix('Call of ')} {block.body}: {brought}", _LINE))
    return lines


def _methods(before: Sequence[str], calls: Sequence[str], room: int) -> list[str]:
    """The latest lines within the room left, in order."""
    kept: list[str] = []
    for line in reversed([*before, *calls][-_MOST_CALLS:]):
        room -= len(line.split())
        if room < 0:
            break
        kept.append(f"\n{line}")
    return kept[::-1]


def _sentences(text: str, start: int, end: int | None) -> str:
    plain = " ".join(_ANSWERED.sub(" ", text).split())
    return " ".join(_SENTENCE.split(plain)[start:end])


def _first(text: str, words: int) -> str:
    """A text on one line, cut to a number of words."""
    kept = text.split()
    return " ".join(kept[: max(words, 1)]) + ("…" if len(kept) > max(words, 1) else "")


_POINTS: Final = 4
"""A synthesis is one of so many equal points of a question, so that it errs less than a search."""

_MOST_FACTS: Final = 12


def writer(conversation: Conversation, mind: Mind, *, along: bool = False) -> Draft:
    """Write a report: the first dozen facts in view, or ``along`` the question's chain those of its hops; the answer.

    The answer is the one that the facts lead to; else the one that most texts in view propose; else a guess.
    """
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    texts = [m.text for m in conversation.messages if m.role != "system"]
    answers = proposed("\n".join(texts))
    subject = find_subject(conversation)
    counted = Counter(normal(answer) for answer in answers)
    spelling = {normal(answer): answer for answer in answers}
    ranked = [spelling[key] for key, _ in counted.most_common()]
    right: str | None = ranked[0] if ranked else None
    key = "\x1f".join(sorted(counted))
    mind.think(draft, "\n</think>\n")
    if subject.chain is not None:
        key = chain_key(subject.chain)
        stated = list(dict.fromkeys(fact for text in texts for fact in facts_in(text)))[:_MOST_FACTS]
        _state_facts(draft, _path(subject.chain, texts) if along else stated)
        found = walk(subject.chain, texts)
        if found is not None:
            right = found[0]
        elif right is None:
            right = best_guess(Episode(conversation, subject.chain), mind)
    elif not ranked:
        draft.say("There is nothing in the messages that I could report.\n<answer>unknown</answer>")
        return draft
    others = [answer for answer in ranked if right is None or normal(answer) != normal(right)]
    masses = options(Point(key, 0, _POINTS, False, False), right, others, mind.dials)
    draft.say("This leads to")
    answer = draft.choose(mind, {f" {option}": mass for option, mass in masses.items()}).chosen[1:]
    draft.believe(masses[answer])
    draft.say(f".\n<answer>{answer}</answer>")
    return draft


def _path(chain: Chain, texts: list[str]) -> list[Fact]:
    """The facts of each hop of a chain, up to the first one missing."""
    names, name, facts = Names(texts), chain.anchor, []
    for relation in chain.relations:
        said = names.stated(name, relation, texts)
        if said is None:
            break
        facts.append(Fact(name, relation, said))
        name = said
    return facts


def _state_facts(draft: Draft, facts: list[Fact]) -> None:
    if facts:
        draft.say("What the sources say:\n")
        for fact in facts:
            phrase = RELATIONS[fact.relation].phrase.replace("{x}", fact.subject)
            draft.say(f"- {phrase} is given as {fact.object};\n")


_PICKER_CANDIDATE: Final = re.compile(r'<candidate number="(\d{1,4})"([^<>]*)>(.*?)</candidate>', re.DOTALL)
_TRIES: Final = re.compile(r'tries="(\d{1,4})"')
_PICKER_ANSWER: Final = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
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
    """A numbered candidate: its normal answer, its reports, and its tries plus clear reports as weight."""

    number: str
    answer: str
    reports: Sequence[str]
    weight: int


def picker(conversation: Conversation, mind: Mind) -> Draft:
    """Pick one of the numbered candidates of a prompt; without candidates, write a report.

    The right answer is worked out from the reports: a word problem is solved again, a question's chain is followed
    through their facts, or only its last hop. Where that leads to no candidate, the heaviest counts as right. Another
    is picked at the rate of false accepts, and none at the rate of broken calls.
    """
    candidates = [_read(*match.groups()) for match in _PICKER_CANDIDATE.finditer(conversation.said("user"))]
    if not candidates:
        return writer(conversation, mind, along=True)
    draft = Draft(conversation.opened)
    if not draft.left and mind.accident(mind.dials.empty):
        return draft
    right = _right(conversation, candidates)
    mind.think(draft, "\n</think>\n")
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
    answer, tries = _PICKER_ANSWER.search(inside), _TRIES.search(facts)
    reports = _REPORT.findall(inside)
    clear = sum("no" not in marks for marks, _ in reports)
    weight = (int(tries[1]) if tries else 1) + clear
    return _Candidate(number, normal(answer[1] if answer else ""), [said for _, said in reports], weight)


def _right(conversation: Conversation, candidates: Sequence[_Candidate]) -> _Candidate:
    """The candidate that the evidence supports."""
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
    elif subject.steps is not None and (total := _total(subject.steps)) is not None:
        wanted = {total}
    supported = [one for one in candidates if one.answer in wanted]
    return max(supported or candidates, key=lambda one: (one.weight, -int(one.number)))


def _given(report: str) -> str:
    """The facts that a report lists as given, in the sentences of documents."""
    facts = [
        Fact(match[1], relation, match[2])
        for relation, pattern in _LISTED.items()
        for match in pattern.finditer(report)
    ]
    return " ".join(sentence(fact, 0) for fact in facts)
