"""What an answer is worth in the eyes of a model that is given a rubric."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline.bounds import number, shown, text, whole
from trunkline.errors import ConfigError, TrunklineError
from trunkline.llm.cache import place
from trunkline.llm.request import Sampling
from trunkline.llm.spec import EndpointSpec
from trunkline.printable import said
from trunkline.score.asking import Asker
from trunkline.score.rewards.judge.grades import GradeFile, Grades, key_of
from trunkline.score.rewards.judge.prompt import RUBRIC, grade_in, messages, system
from trunkline.score.rewards.reward import Scored

if TYPE_CHECKING:
    from trunkline.tree.trajectory import Trajectory
    from trunkline.types import Message, Usage

__all__ = ["Judge", "OpenJudge"]

_DRAWS: Final = 2
"""How often a judge is asked whose reply holds no grade."""

_LARGEST: Final = 1 << 20
"""Bytes of a rubric's file."""


class Judge(msgspec.Struct, frozen=True, dict=True):
    """Asks a model to grade the answer by a rubric, given the question and the accepted answers.

    The same question about the same answer is asked once: the grade is kept for as long as this judge is, and in a
    file if ``cache`` names one. A reply without a grade is asked for once more; if that has none either, or the model
    cannot be reached, the rollout stays unscored. An answer that is missing or blank scores 0 without a question.
    What judging costs is in no budget of the run.

    Args:
        model: The model's name, as its endpoint knows it.
        llm: Where it is asked: ``trunkline.LLM``, or a base URL; the endpoint of the environment, as of
            ``trunkline.LLM()``, when None. It crosses to workers without a key: name the key's variable with
            ``api_key_env``. Another LLM object works where no worker process is involved.
        rubric: What makes an answer good, or ``@`` and the path of a file that says it.
        scale: The worst and the best grade, such as ``(1, 5)``; the reward is the grade, stretched to 0 to 1. None to
            ask for correct or incorrect.
        cache: A file to keep grades in; several processes and runs may share it.
        timeout: Seconds for a grade, a second question included.
        sampling: How the model samples. At temperature 0 a second question gets the same reply as the first.
        seed: Seed of its draws.

    Raises:
        ConfigError: An option has a value it cannot have, the rubric's file cannot be read, or the key is missing.
    """

    model: str
    llm: EndpointSpec | str | None = None
    rubric: str = RUBRIC
    scale: tuple[float, float] | None = None
    cache: str | None = None
    timeout: float = 120.0
    sampling: Sampling = Sampling()
    seed: int = 0

    def __post_init__(self) -> None:
        if not text("Judge: model", self.model).strip():
            raise ConfigError("Judge: model is empty; name the model as its endpoint does")
        if self.llm is None or isinstance(self.llm, str):
            made = EndpointSpec() if self.llm is None else EndpointSpec(self.llm)
            msgspec.structs.force_setattr(self, "llm", made)
        if isinstance(self.llm, EndpointSpec):
            if self.llm.secret is not None:
                raise ConfigError(
                    "Judge: a key or headers given directly would not reach worker processes: put the key into an "
                    "environment variable, and name that with trunkline.LLM(..., api_key_env=...)"
                )
            self.llm.key()
        msgspec.structs.force_setattr(self, "rubric", _rubric(self.rubric))
        if self.scale is not None:
            msgspec.structs.force_setattr(self, "scale", _scale(self.scale))
        if self.cache is not None:
            msgspec.structs.force_setattr(self, "cache", place(self.cache))
        number("Judge: timeout", self.timeout, 0, above=True, unit="seconds")
        if not isinstance(self.sampling, Sampling):
            raise ConfigError(f"Judge: sampling must be Sampling(...), not {shown(self.sampling)}")
        whole("Judge: seed", self.seed, 0, 2**63 - 1)

    async def __call__(self, trajectory: Trajectory) -> Scored | float:
        """Ask about one trajectory, with a connection of its own; return the reward, or why there is none.

        Args:
            trajectory: An ended rollout.
        """
        live = self.opened()
        try:
            return await live(trajectory)
        finally:
            await live.close()

    def opened(self) -> OpenJudge:
        """Return what asks in one event loop, over connections that stay open until it is closed.

        Raises:
            ConfigError: The cache cannot be used.
        """
        grades: Grades = self.__dict__.setdefault("grades", Grades())
        return OpenJudge(self, grades)


class OpenJudge:
    """Asks in one event loop; close it there.

    Args:
        judge: The judge.
        grades: What it said before.

    Attributes:
        usage: What all questions cost.
    """

    timeout = math.inf

    def __init__(self, judge: Judge, grades: Grades) -> None:
        self._judge = judge
        self._grades = grades
        self._asker = Asker(judge.llm, judge.model, judge.sampling, judge.seed)
        self._file = None if judge.cache is None else GradeFile(judge.cache)
        self._head = system(judge.rubric, judge.scale)
        # What is the same for every answer. Who serves the model is not part of it.
        constant = [judge.model, self._head, msgspec.json.encode(judge.sampling, order="sorted").decode()]
        self._constant = [*constant, str(judge.scale), str(judge.seed)]
        self._flights: dict[bytes, _Flight] = {}
        self._tasks: set[asyncio.Task[Scored | float]] = set()

    @property
    def usage(self) -> Usage:
        """What all questions cost."""
        return self._asker.usage

    async def __call__(self, trajectory: Trajectory) -> Scored | float:
        """Ask about one trajectory; return the reward, or why there is none.

        Args:
            trajectory: An ended rollout.
        """
        answer = trajectory.answer
        if answer is None or not answer.strip():
            return 0.0
        task = trajectory.task
        asked = messages(self._head, task.question, task.reference, answer)
        key = key_of([*self._constant, str(asked[1]["content"])])
        grade = self._known(key)
        if grade is not None:
            return grade
        limit = asyncio.timeout(self._judge.timeout)
        try:
            async with limit:
                return await self._shared(key, asked)
        except TimeoutError:
            if not limit.expired():
                raise
            return Scored(math.nan, f"{self._name} gave no grade within {self._judge.timeout:g} s")

    async def close(self) -> None:
        """Give up what is being asked, and close connections and the cache."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._asker.close()
        if self._file is not None:
            self._file.close()

    @property
    def _name(self) -> str:
        return f"the judge {self._judge.model}"

    def _known(self, key: bytes) -> float | None:
        grade = self._grades.get(key)
        if grade is None and self._file is not None:
            grade = self._file.get(key)
            if grade is not None:
                self._grades.keep(key, grade)
        return grade

    async def _shared(self, key: bytes, asked: list[Message]) -> Scored | float:
        """Ask, or wait for somebody else's reply to the same; the last to give up takes the question back."""
        flight = self._flights.get(key)
        if flight is None:
            task = asyncio.get_running_loop().create_task(self._ask(key, asked))
            flight = self._flights[key] = _Flight(task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                # Nobody may join it any more; a later one may already be under way.
                if self._flights.get(key) is flight:
                    del self._flights[key]
                flight.task.cancel()

    async def _ask(self, key: bytes, asked: list[Message]) -> Scored | float:
        try:
            for draw in range(_DRAWS):
                reply = await self._asker.ask(asked, draw)
                # One that was cut may repeat a grade of the response, and has not come to its own.
                grade = None if reply.finish == "length" else grade_in(reply.text, self._judge.scale)
                if grade is not None:
                    self._grades.keep(key, grade)
                    if self._file is not None:
                        self._file.keep(key, grade)
                    return grade
        except TrunklineError as problem:
            return Scored(math.nan, f"{self._name} gave no reply: {said(problem)}")
        return Scored(math.nan, f"{self._name} gave no grade that can be read, in {_DRAWS} replies")


class _Flight:
    """A question on its way, and how many wait for the reply."""

    def __init__(self, task: asyncio.Task[Scored | float]) -> None:
        self.task = task
        self.waiting = 0


def _rubric(given: object) -> str:
    """Return a rubric, that of a file if one is named."""
    rubric = text("Judge: rubric", given)
    if rubric.startswith("@"):
        path = rubric[1:]
        try:
            with Path(path).open("rb") as file:
                data = file.read(_LARGEST + 1)
            rubric = data.decode()
        except (OSError, ValueError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
            raise ConfigError(f"Judge: the rubric {path!r} cannot be read: {why}") from None
        if len(data) > _LARGEST:
            raise ConfigError(f"Judge: the rubric {path!r} is longer than {_LARGEST:,} bytes")
        if rubric.startswith("@"):
            raise ConfigError(f"Judge: the rubric {path!r} begins with @, which would name another file")
    if not rubric.strip():
        raise ConfigError("Judge: the rubric is empty; say what makes an answer good")
    return rubric


def _scale(given: object) -> tuple[float, float]:
    """Return a scale of two numbers."""
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ConfigError(f"Judge: scale must be the worst and the best grade, such as (1, 5), not {shown(given)}")
    for end in given:
        number("Judge: scale", end, -1e6, 1e6)
    low, high = given
    if low >= high:
        raise ConfigError(f"Judge: scale must go up, from the worst grade to the best, not {shown(given)}")
    return float(low), float(high)
