"""Exact, contains, numeric, F1, multiple choice."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from trunkline._internal.validation import check_choice, check_float, check_text, short_repr
from trunkline.scoring.answers import extract_answer, number, tail
from trunkline.scoring.rewards.base import Scored
from trunkline.tree.answers import LONG, fold, normalise

if TYPE_CHECKING:
    from trunkline.tree.views import Trajectory


_SEARCHED: Final = 50_000  # characters at the end of an answer that count


def exact_match(trajectory: Trajectory) -> float | None:
    """1.0 if the answer equals a reference answer after normalisation, else 0.0.

    Args:
        trajectory: An ended rollout.

    Returns:
        The reward; None if the task has no reference answer.
    """
    accepted = {*map(normalise, trajectory.task.reference)}
    if not accepted:
        return None
    answer = trajectory.answer
    return float(answer is not None and normalise(answer) in accepted)


class Numeric(msgspec.Struct, frozen=True):
    """``numeric_match`` with differences of your own.

    Args:
        relative: Largest difference as a share of the larger number.
        absolute: Largest difference that is always accepted.

    Raises:
        ConfigError: One is negative, or no number.
    """

    relative: float = 1e-6
    absolute: float = 1e-9

    def __post_init__(self) -> None:
        check_float("Numeric: relative", self.relative, 0)
        check_float("Numeric: absolute", self.absolute, 0)

    def __call__(self, trajectory: Trajectory) -> float | None:
        """Return 1.0 if the numbers are close enough, else 0.0; None if no reference answer states a number."""
        return numeric_match(trajectory, relative=self.relative, absolute=self.absolute)


def _searched(text: str) -> str:
    return fold(tail(text.strip(), _SEARCHED))


def contains(trajectory: Trajectory) -> float | None:
    """1.0 if a reference answer stands in the answer as whole words after normalisation, else 0.0.

    Of an answer of more than 50,000 characters only the last ones are searched.

    Args:
        trajectory: An ended rollout.

    Returns:
        The reward; None if the task has no reference answer.
    """
    accepted = [_searched(reference) for reference in trajectory.task.reference]
    if not any(accepted):
        return None
    answer = f" {_searched(trajectory.answer or '')} "
    return float(any(f" {reference} " in answer for reference in accepted if reference))


def numeric_match(trajectory: Trajectory, *, relative: float = 1e-6, absolute: float = 1e-9) -> float | None:
    """1.0 if the number in the answer is close to the number in a reference answer, else 0.0.

    Args:
        trajectory: An ended rollout.
        relative: Largest difference as a share of the larger number.
        absolute: Largest difference that is always accepted.

    Returns:
        The reward; None if no reference answer states a number.
    """
    accepted = [value for value in map(number, trajectory.task.reference) if value is not None]
    if not accepted:
        return None
    found = number(trajectory.answer or "")
    if found is None:
        return 0.0
    return float(any(math.isclose(found, value, rel_tol=relative, abs_tol=absolute) for value in accepted))


def _words(text: str) -> Counter[str]:
    return Counter(_searched(text).split())


def _f1(answer: Counter[str], accepted: Counter[str]) -> float:
    shared = (answer & accepted).total()
    return 2 * shared / (answer.total() + accepted.total()) if shared else 0.0


class F1(msgspec.Struct, frozen=True):
    """The F1 of an answer's words against those of a reference answer, the best of them where there are several.

    As SQuAD measures it (Rajpurkar et al., 2016): with s words in common, counted as often as they stand in both, of m
    in the answer and n in the reference answer, 2s / (m + n). Words are compared after normalisation, without articles
    and punctuation. Of an answer of more than 50,000 characters only the last ones count.
    """

    def __call__(self, trajectory: Trajectory) -> float | None:
        """Return a number from 0 to 1; None if the task has no reference answer."""
        accepted = [words for reference in trajectory.task.reference if (words := _words(reference))]
        if not accepted:
            return None
        answer = _words(trajectory.answer or "")
        return max(_f1(answer, words) for words in accepted)


_DRESS: Final = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|boldsymbol|bf|rm)\b|[*_`${}]|\\[(),\[\] ]")
"""Markup around a letter that is ignored: LaTeX's text commands, Markdown's stars."""

_WIDE: Final = {0xFEE0 + code: code for code in range(0x21, 0x7F)}  # the full-width forms of ASCII's characters
_WORDS: Final = frozenset({"A", "I"})  # labels that are words, too
_GOES_ON: Final = r"(?!\s+(?!(?:and|as|because|but|due|for|is|nor|or|since|was|which|with)\b)[a-z])"
"""After a label that is a word as well: no sentence continues as it would after the word."""


_END: Final = r"(?=[\s).\]]*$)"  # after a small letter that is a word as well: the end of the answer
_SIGN: Final = r"(?![\w'\u2019]|-\w|[.,]\d)"  # after a label that is no part of a word or number
_DENIED: Final = "".join(
    rf"(?<!\b{word} )(?<!\b{word} [(\[])" for word in ("not", "nor", "than", "neither", "except", "isn't", "not option")
)
"""Before a label that an answer does not deny; words, so that labels and options of any language are read."""

_REFUSED: Final = "".join(rf"(?<!\b{word} )" for word in ("not", "nor", "than", "neither", "except", "isnt"))
"""The same in a text that is folded."""


class ChoiceOptions:
    """The options of one question."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._labels = {label.casefold(): label for label in texts}
        self._exact = {label: _undressed(option) for label, option in texts.items()}
        self._texts = {label: normalise(option) for label, option in texts.items()}
        self._order = list(texts)
        by_length = sorted(texts, key=len, reverse=True)
        self._label = "(?i:" + "|".join(map(re.escape, by_length)) + ")"
        self._stated = "|".join(_stated(label) for label in by_length)
        self._alone = "|".join(_alone(label) for label in by_length)

    @classmethod
    def of(cls, given: object) -> ChoiceOptions | None:
        """Read options as data sets write them; None if there are none."""
        if isinstance(given, Mapping) and isinstance(given.get("text"), Sequence) and "label" in given:
            labels, texts = given["label"], given["text"]
            if isinstance(labels, str) or not isinstance(labels, Sequence) or len(labels) != len(texts):
                return None
            given = dict(zip(labels, texts, strict=True))
        elif isinstance(given, Sequence) and not isinstance(given, str):
            given = dict(zip(ascii_uppercase, given, strict=False)) if len(given) <= len(ascii_uppercase) else None
        if not isinstance(given, Mapping) or not given:
            return None
        plain = {str(label).strip(): option for label, option in given.items() if isinstance(option, str | int | float)}
        return cls({label: str(option) for label, option in plain.items()}) if len(plain) == len(given) else None

    def meant(self, reference: str, written: str) -> str | None:
        """Return the label of the option that a reference answer stands for."""
        plain = reference.strip()
        if written in {"auto", "label"} and (label := self._label_of(plain)) is not None:
            return label
        if written in {"auto", "text"} and len(labels := self._saying(_undressed(plain))) == 1:
            return labels[0]
        if written in {"auto", "index"} and plain.isascii() and plain.isdigit() and int(plain[:9]) < len(self._order):
            return self._order[int(plain[:9])]
        return None

    def named(self, answer: str) -> str | None:
        """The label of the one option that an answer names; None if it names none, or several.

        Readings are tried in order (``_readings``), and the first that names anything decides.
        """
        lines = [line for line in map(_undressed, tail(extract_answer(answer), LONG).splitlines()) if line]
        for found in self._readings(" ".join(lines), lines) if lines else ():
            if found:
                return found.pop() if len(found) == 1 else None
        return None

    def _readings(self, plain: str, lines: Sequence[str]) -> Iterator[set[str]]:
        """The labels that an answer names, by less and less certain readings."""
        stated = self._stated_labels(plain, r"\s*(?:(?:is|are|must be|would be|should be)\b\s*[:=]?|[:=])")
        # A label on a line of its own: the answer after its reasons, or before them.
        first, last = ({label} if (label := self._line(line)) else set() for line in (lines[0], lines[-1]))
        yield first | last if last or not first else first | stated
        yield set(self._saying(plain))
        yield stated
        begins = re.match(rf"(?:[(\[]\s*({self._label})\s*[)\]]|({self._label})\s*[).:])[.:,]?\s+(.+)", plain)
        if begins:
            # "(B) Paris": where the text is that of another option, the answer says two things.
            yield {self._known(begins[1] or begins[2]), *self._saying(begins[3])}
        # "Option B" alone says less than "the answer is B": it may be turned down.
        yield self._stated_labels(plain, "")
        alone = re.finditer(
            rf"(?i:{_DENIED})(?:[(\[]\s*({self._label})\s*[)\]]|(?<![\w'\u2019\\-])({self._alone}){_SIGN}(?!-))", plain
        )
        yield {self._known(one[1] or one[2]) for one in alone} | self._spoken(plain)

    def _line(self, line: str) -> str | None:
        """The label that is all of a line."""
        found = re.fullmatch(rf"[(\[\"'\u201c\u2018]*\s*({self._label})\s*[)\]\"'\u201d\u2019]*[.:,;]?", line)
        return self._known(found[1]) if found else None

    def _stated_labels(self, plain: str, verb: str) -> set[str]:
        """The labels after "the answer", "choice" or "option" and a verb."""
        stated = re.finditer(
            rf"(?i:{_DENIED}\b(?:answer|choice|option)s?\b{verb})\s*(?i:(?:option|choice)\s+)?"
            rf"(?:[(\[]\s*({self._label})(?=\s*[)\]])|[(\[]?\s*({self._stated}){_SIGN})"
            # "A or B" says both.
            rf"((?:\s*[)\]]?\s*(?:[,/&]|\b(?:or|and)\b)\s*[(\[]?\s*(?:{self._alone}){_SIGN})*)",
            plain,
        )
        named = [(one[1] or one[2], *re.findall(rf"(?<!\w)(?:{self._alone})(?!\w)", one[3])) for one in stated]
        return {self._known(label) for labels in named for label in labels}

    def _label_of(self, reference: str) -> str | None:
        return self._labels.get(_undressed(extract_answer(reference)).strip("()[]. ").casefold())

    def _known(self, label: str) -> str:
        return self._labels[label.casefold()]

    def _saying(self, plain: str) -> list[str]:
        """The options with this text: to the letter, else after normalisation."""
        if exact := [label for label, option in self._exact.items() if option and option == plain]:
            return exact
        said = normalise(plain)
        return [label for label, option in self._texts.items() if option and option == said]

    def _spoken(self, plain: str) -> set[str]:
        """The options whose text stands in an answer, without those inside a longer option's text."""
        searched = fold(plain)
        found = [
            option
            for option in self._texts.values()
            if option and option in searched and re.search(rf"{_REFUSED}(?<!\S){re.escape(option)}(?!\S)", searched)
        ]
        longest = {one for one in found if not any(one != other and f" {one} " in f" {other} " for other in found)}
        return {label for label, option in self._texts.items() if option in longest}


def _undressed(text: str) -> str:
    """A text on one line, without markup around letters."""
    return " ".join(_DRESS.sub(" ", text.translate(_WIDE)).split())


def _stated(label: str) -> str:
    """Pattern of a label after "the answer is": in any case, if it is no word."""
    if label.upper() not in _WORDS:
        return f"(?i:{re.escape(label)})"
    return f"{label.upper()}{_GOES_ON}|{label.lower()}{_GOES_ON if label.islower() else _END}"


def _alone(label: str) -> str:
    """Pattern of a label anywhere: as it is written, or its capital."""
    if label.upper() not in _WORDS:
        return "|".join(re.escape(one) for one in dict.fromkeys((label, label.upper())))
    return f"{label.upper()}{_GOES_ON}|{label.lower()}{_END}"


class Choice(msgspec.Struct, frozen=True):
    r"""Multiple choice: 1.0 if the answer names the right option and no other, else 0.0.

    Options stand in the task's metadata. An answer may be a letter in whatever dress (``(B)``, ``B.``,
    ``\boxed{\text{B}}``, ``The answer is B``) or the text of an option. One that names several is wrong.

    Args:
        options: The field of the task's metadata: a list of texts, labelled A, B, C and so on; a dict from labels to
            texts; or a dict of the lists ``label`` and ``text``.
        reference: How reference answers are written: as ``label``, ``text``, or ``index`` from 0. ``auto`` takes the
            first of these that fits; say which one it is where options are numbers.

    Raises:
        ConfigError: An option has a value it cannot have.
    """

    options: str = "choices"
    reference: Literal["auto", "label", "text", "index"] = "auto"

    def __post_init__(self) -> None:
        check_text("Choice: options", self.options)
        check_choice("Choice: reference", self.reference, "auto", "label", "text", "index")

    def __call__(self, trajectory: Trajectory) -> Scored | float | None:
        """Return 1.0 or 0.0; no value if the task has no options, or its reference answers are none of them."""
        task = trajectory.task
        if self.options not in task.metadata or not task.reference:
            return None
        options = ChoiceOptions.of(task.metadata[self.options])
        if options is None:
            return Scored(math.nan, f"Choice: the task's {short_repr(self.options)} is no list or dict of options")
        accepted = {options.meant(reference, self.reference) for reference in task.reference} - {None}
        if not accepted:
            return Scored(
                math.nan, f"Choice: reference answer {short_repr(task.reference[0])} is none of the task's options"
            )
        return float(options.named(trajectory.answer or "") in accepted)
