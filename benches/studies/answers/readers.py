"""Models that read what chains did: a judge of tries, and who writes reports and picks. No label reaches them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from studies.engine import SimLLM
from trunkline.errors import RolloutError
from trunkline.scoring.aggregators.llm import transcript
from trunkline.scoring.model_client import ModelClient
from trunkline.sim.server.options import Settings

if TYPE_CHECKING:
    from trunkline.llm.types import Reply, Request
    from trunkline.scoring.aggregators.base import Candidate
    from trunkline.types import Usage

__all__ = ["Judged", "Reader", "judge"]

JUDGE: Final = "sim-verifier"

_EVEN: Final = {"false_accept": 0.5, "false_reject": 0.5}
"""In ``null`` nothing tells right from wrong, and who reads the documents again must not know either."""

_INSTRUCTIONS: Final = """\
Below are a question and how somebody worked on it. Decide whether the proposed answer is right, by the documents that \
were read. End with <verdict>yes</verdict> or <verdict>no</verdict>."""

_VERDICT: Final = re.compile(r"<verdict>(yes|no)</verdict>")


class Judged(NamedTuple):
    """What a judge says of a try.

    Attributes:
        reward: 1 where it accepts the answer, 0 where it does not or says nothing.
        usage: What asking cost.
    """

    reward: float
    usage: Usage


class Reader:
    """The simulator's models as readers, which answer an equal request once and remember the reply.

    Chains are put together to groups of every size, and the report on a chain is the same in all of them. What a reply
    cost is counted every time. There is no prefix cache: a group must not find its prompt warmed by another.

    Args:
        preset: How they err; in ``null`` they pick and judge by even odds.
    """

    def __init__(self, preset: str) -> None:
        dials: dict[str, str | int | float] = dict(_EVEN) if preset == "null" else {}
        self._llm = SimLLM(Settings(preset=preset, dials=dials, cache_tokens=0))
        self._known: dict[bytes, Reply] = {}

    async def complete(self, request: Request) -> Reply:
        """Complete one request; see :meth:`.SimLLM.complete`."""
        body = request.body
        known = self._known.get(body)
        if known is None:
            known = self._known[body] = await self._llm.complete(request)
        return known

    async def close(self) -> None:
        """Nothing is held."""


async def judge(reader: Reader, question: str, candidate: Candidate) -> Judged:
    """Ask whether a try's answer is right, by what the try itself saw.

    Args:
        reader: Who is asked.
        question: What was asked of the try.
        candidate: The try, with its messages.
    """
    asker = ModelClient(reader, JUDGE)
    told = f"{transcript(question, candidate.messages)}\n\nProposed: <answer>{candidate.answer or 'none'}</answer>"
    try:
        reply = await asker.ask([{"role": "system", "content": _INSTRUCTIONS}, {"role": "user", "content": told}])
    except RolloutError:
        return Judged(0.0, asker.usage)
    said = _VERDICT.findall(reply.text)
    return Judged(float(bool(said) and said[-1] == "yes"), asker.usage)
