"""Plain questions to a model, outside any rollout: what judges, reports and aggregators ask."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline._internal.text import format_error, printable
from trunkline._internal.validation import check_int, check_that
from trunkline.errors import LLMError, ReplyError
from trunkline.llm import messages as chat
from trunkline.llm import own
from trunkline.llm import request as body
from trunkline.llm.config import LLM
from trunkline.llm.dialects.base import spoken
from trunkline.llm.openai_client import as_llm
from trunkline.llm.request import Sampling
from trunkline.llm.types import LLMClient, Request
from trunkline.types import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.types import Reply
    from trunkline.types import Message


class ModelReply(msgspec.Struct, frozen=True):
    text: str
    finish: str
    usage: Usage


class ModelClient:
    """Asks one model and counts the cost; bound to the event loop of its first question."""

    def __init__(self, llm: Any, model: str, sampling: Sampling = Sampling(), seed: int = 0) -> None:  # noqa: B008 - frozen
        self._spec = LLM(llm) if isinstance(llm, str) else llm if isinstance(llm, LLM) else None
        self._llm: LLMClient | None = None if self._spec is not None else as_llm(llm)
        check_that(isinstance(sampling, Sampling), "sampling must be Sampling(...)", sampling)
        self._head = body.head(model, "model")
        self._constant = body.constant(sampling)
        self._seed = check_int("seed", seed, 0, 2**63 - 1)
        self.model = model
        self.usage = Usage()

    async def ask(self, messages: Sequence[Message], draw: int = 0) -> ModelReply:
        told = b",".join(chat.encode(message) for message in messages)
        prompt = self._head + told + self._constant
        # Below 2^53, so that servers in any language read the same number.
        digest = hashlib.blake2b(b"%d %d " % (self._seed, draw) + prompt, digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 11
        content = prompt + body.draws(seed if self._spec is None or self._spec.send_seed else None)
        key = int.from_bytes(hashlib.blake2b(told[:256], digest_size=4).digest(), "little")
        request = Request(content, key, seed=seed, constant=len(prompt), model=self.model)
        # A user's own object need not read its replies as our clients do: callers see one error for all of them.
        try:
            llm = self._open()
            reply = own.checked(await own.complete(llm, request), type(llm).__name__)
        except ReplyError as problem:
            raise LLMError(
                f"what {printable(self.model, 60)} answered is no reply: {format_error(problem)}"
            ) from problem
        usage = _usage(reply)
        self.usage += usage
        choice = reply.choices[0]
        return ModelReply(spoken(choice.content), choice.finish, usage)

    async def close(self) -> None:
        """Close what was opened here. May be called more than once; another question opens it again."""
        if self._spec is not None and self._llm is not None:
            llm, self._llm = self._llm, None
            await llm.close()

    def _open(self) -> LLMClient:
        if self._llm is None:
            assert self._spec is not None
            self._llm = self._spec.open()
        return self._llm


def _usage(reply: Reply) -> Usage:
    reported = reply.prompt >= 0 and reply.generated >= 0
    return Usage(
        calls=1,
        prompt=reply.prompt if reported else 0,
        cached=max(reply.cached, 0) if reported else 0,
        generated=reply.generated if reported else 0,
        unreported=0 if reported else 1,
        retries=max(reply.attempts - 1, 0),
    )
