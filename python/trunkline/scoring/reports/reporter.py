"""Reports that a model writes: what a tree shares is reported once, and extended along its branches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from trunkline.bounds import choice, number, whole
from trunkline.errors import ConfigError, LLMError
from trunkline.llm.request import Sampling
from trunkline.llm.text import scrub
from trunkline.printable import printable, said
from trunkline.score.asking import Asker
from trunkline.score.reports.extract import messages_of
from trunkline.score.reports.outcome import Problem, Reported
from trunkline.score.reports.prompts import RESULT, asked, question_of, written
from trunkline.score.reports.segments import reported_leaves, segments
from trunkline.score.reports.sharing import CACHED, SHARES, Sizes, choose
from trunkline.score.reports.steps import clipped, steps
from trunkline.types import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.score.reports.segments import Segment
    from trunkline.score.reports.sharing import Share
    from trunkline.tree.tree import Tree

__all__ = ["Reporter", "Work"]

_CHARACTERS: Final = 4
"""Characters of a token, for estimates."""

_LONG: Final = 24
"""Characters a word that was asked for; what is longer than that is not the report that was asked for, and is cut."""

_DRAWS: Final = 2
"""How often a report is asked for where the model writes nothing."""

_TOKENS: Final = 1.4
"""Tokens of a word, for estimates."""


class Reporter:
    """Writes a report on every leaf of a tree, with the help of a model; ``trunkline.Reporter``.

    A report (compressed reasoning) says what the path to a node set out to do, which calls mattered, how what was found
    leads to where it stands, and the answer. What several rollouts share is reported once, where they part, and
    extended along the branches: a request holds the question, the report on what came before, and the steps since.

    Args:
        llm: As for :class:`~trunkline.score.asking.Asker`, or an ``Asker``, which then belongs to who made it.
        model: The model's name, as its endpoint knows it; not with an ``Asker``.
        sampling: How it samples.
        seed: Seed of what is asked.
        share: ``always``: a report at every place where rollouts part. ``never``: one on each leaf, from scratch over
            its whole path, as ParallelMuse writes them. ``auto``: one where rollouts part wherever that is estimated to
            cost less; see :func:`trunkline.score.reports.sharing.choose`.
        words: Most words of a report.
        result: Characters of a tool's output that a request shows: the middle of what is longer is left out.
        cached: For ``auto``: what a prompt token costs that the server's prefix cache holds, of one that it does not; 1
            where it has no such cache.
        again: Whether what has a report gets another one. Without it, a report that is there is used as it is, so that
            writing can go on where it was stopped.

    Attributes:
        model: The model's name.

    Raises:
        ConfigError: A value cannot be used; the message names it.
    """

    def __init__(
        self,
        llm: Any,
        model: str | None = None,
        *,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        seed: int = 0,
        share: Share = "auto",
        words: int = 150,
        result: int = RESULT,
        cached: float = CACHED,
        again: bool = False,
    ) -> None:
        if isinstance(llm, Asker):
            if model is not None:
                raise ConfigError("Reporter: model is the Asker's own; leave it out")
            self._asker = llm
        elif model is None:
            raise ConfigError("Reporter: model is missing; give the name of the model that writes")
        else:
            self._asker = Asker(llm, model, sampling, seed)
        self._owned = not isinstance(llm, Asker)
        self.model = self._asker.model
        choice("Reporter: share", share, *SHARES)
        self.share = share
        self.words = whole("Reporter: words", words, 20, 10_000)
        self.result = whole("Reporter: result", result, 100)
        self.cached = number("Reporter: cached", cached, 0, 1)
        self.again = again

    async def write(self, tree: Tree) -> Reported:
        """Write the reports of a tree onto its nodes.

        What does not depend on one another is asked at once; the LLM's own limits say how many requests are in flight.
        A request that fails leaves its node without a report, and what follows it is reported from the nearest node
        above that has one. Rollouts that grow, broke or were cut get no report.

        Args:
            tree: The tree; ``Node.compressed_reasoning`` has the reports, and the next delta of its core.

        Returns:
            What was written, what not and why, and what it cost.

        Raises:
            EndpointError: The endpoint serves nobody.
            ConfigError: The key is missing.
        """
        work = self.work_on(tree)
        await work.execute()
        return work.reported

    def work_on(self, tree: Tree) -> Work:
        """What :meth:`write` does, for those who want to know what came of it also where it ends early.

        Args:
            tree: The tree.
        """
        return Work(tree, self, self._asker)

    async def close(self) -> None:
        """Close what was opened here. May be called more than once."""
        if self._owned:
            await self._asker.close()


class Work:
    """The reports of one tree, while they are written.

    Args:
        tree: The tree.
        reporter: Who writes them, and how.
        asker: Asks the model.
    """

    def __init__(self, tree: Tree, reporter: Reporter, asker: Asker) -> None:
        self._usage = Usage()
        self._written = 0
        self._skipped = 0
        self._problems: list[Problem] = []
        self._core = tree.core
        self._asker = asker
        self._reporter = reporter
        self._question = question_of(tree.task)
        self._answers = reported_leaves(tree)
        self._found = segments(tree)
        self._steps = [written(steps(messages_of(tree, one.nodes)), reporter.result) for one in self._found]
        self._below: list[list[int]] = [[] for _ in self._found]
        self._known = self._reports(again=reporter.again)
        self._wanted = choose(self._found, self._sizes(), reporter.share, self._known, reporter.cached)

    @property
    def reported(self) -> Reported:
        """What has come of it so far."""
        return Reported(self._usage, self._written, self._skipped, tuple(sorted(self._problems)))

    async def execute(self) -> None:
        """Write them all; raises what :meth:`Reporter.write` does."""
        try:
            async with asyncio.TaskGroup() as group:
                self._begin(group)
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None

    def _begin(self, group: asyncio.TaskGroup) -> None:
        """Begin with the segments that follow the prompt; each begins those below it."""
        first: list[int] = []
        for at, segment in enumerate(self._found):
            (first if segment.parent is None else self._below[segment.parent]).append(at)
        for at in first:
            group.create_task(self._segment(group, at, None, ()))

    def _reports(self, *, again: bool) -> dict[int, str]:
        """Of each segment the report that is there and stays."""
        found = {} if again else {at: self._core.report_of(one.node) for at, one in enumerate(self._found)}
        known = {at: text for at, text in found.items() if text is not None}
        self._skipped = len(known)
        return known

    def _sizes(self) -> Sizes:
        frame = sum(len(str(message["content"])) for message in self._request(None, (), None))
        lengths = [len(text) / _CHARACTERS for text in self._steps]
        return Sizes(frame / _CHARACTERS, self._reporter.words * _TOKENS, lengths)

    def _request(self, before: str | None, shown: Sequence[str], answer: str | None) -> list[dict[str, Any]]:
        return asked(self._question, before, "\n".join(shown), answer, self._reporter.words)

    async def _segment(self, group: asyncio.TaskGroup, at: int, before: str | None, shown: tuple[str, ...]) -> None:
        """Report on a segment, then on those below it.

        Args:
            group: What runs.
            at: The segment.
            before: The nearest report above.
            shown: The steps since then.
        """
        segment = self._found[at]
        shown = (*shown, self._steps[at])
        report = self._known.get(at)
        if self._wanted[at]:
            report = await self._ask(segment, before, shown)
        # From scratch means that nothing is taken over, also where one rollout ends on the path of another.
        if report is not None and self._reporter.share != "never":
            before, shown = report, ()
        for child in self._below[at]:
            group.create_task(self._segment(group, child, before, shown))

    async def _ask(self, segment: Segment, before: str | None, shown: tuple[str, ...]) -> str | None:
        answer = (self._answers[segment.node] or None) if segment.leaf else None
        request = self._request(before, shown, answer)
        finish = ""
        # Equal requests of one seed have equal replies, so one that brought nothing is sent with another draw.
        for draw in range(_DRAWS):
            try:
                reply = await self._asker.ask(request, draw)
            except LLMError as problem:
                self._problems.append(Problem(segment.node, said(problem)))
                return None
            self._usage += reply.usage
            finish = printable(reply.finish, 40)
            text = clipped(scrub(reply.text).strip(), _LONG * self._reporter.words)
            if text:
                self._core.report(segment.node, text)
                self._written += 1
                return text
        self._problems.append(Problem(segment.node, f"{printable(self._asker.model, 60)} wrote nothing ({finish})"))
        return None
