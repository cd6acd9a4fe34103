"""Completions of a text, which the model's server gets as one user message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trunkline.gateway.formats import chat, fields
from trunkline.gateway.types import AgentRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.gateway.types import AgentReply, RequestRefused
    from trunkline.llm.types import ReplyChoice

_REFUSED: Final = {
    "logprobs": fields.NOT_HANDED_OUT,
    "echo": "the prompt passes a chat template; put it before the text yourself",
    "suffix": "the prompt passes a chat template; leave it out",
}
_PASSED_ON: Final = fields.PASSED_ON.keys() - {"parallel_tool_calls"}
_KNOWN: Final = frozenset({"prompt", "model", "n", "best_of", "stream", "max_tokens", "stop"}).union(
    fields.SAMPLING, _PASSED_ON, fields.IGNORED
)


class CompletionsFormat:
    """``/v1/completions``; see ``Format``."""

    route = "/v1/completions"
    conversation = "prompt"

    def head(self, body: dict[str, Any]) -> AgentRequest:
        """Read all but the prompt."""
        fields.check_offered(body, _KNOWN, _REFUSED)
        if fields.given(body, "best_of") not in (None, 1):
            raise fields.unsupported("best_of", "no choice is dropped; ask for n choices and take the best of them")
        return AgentRequest(
            model=fields.text(body, "model"),
            messages=[],
            sampling=fields.sampling(body, fields.passed_on(body)),
            n=fields.choices(body),
            stream=fields.flag(body, "stream"),
            options={"usage": chat.asks_usage(body)},
        )

    def text(self, value: Any) -> list[dict[str, Any]]:
        """Read a prompt."""
        if not isinstance(value, str) or not value:
            raise fields.invalid("prompt", "a text", value)
        return [{"role": "user", "content": value}]

    def add(self, messages: list[dict[str, Any]], items: list[Any], first: int) -> None:
        """Read a list of one prompt."""
        if any(isinstance(one, int | list) for one in items):
            raise fields.unsupported("prompt", "token ids are not taken here; give a text")
        if (count := first + len(items)) > 1:
            raise fields.unsupported("prompt", f"{count:,} prompts in one request; ask for each by itself")
        for one in items:
            messages.extend(self.text(one))

    def write(self, request: AgentRequest, reply: AgentReply) -> dict[str, Any]:
        """Return the body of a reply; calls of functions have no place in it."""
        del request
        choices = [_choice(place, choice) for place, choice in enumerate(reply.choices)]
        return {**_head(reply), "choices": choices, "usage": chat.usage_of(reply)}

    def events(self, request: AgentRequest, reply: AgentReply) -> Iterator[bytes]:
        """Return a reply as chunks, one for each choice."""
        asked = request.options.get("usage")
        rest = {"usage": None} if asked else {}
        for place, choice in enumerate(reply.choices):
            yield chat.event({**_head(reply), "choices": [_choice(place, choice)], **rest})
        if asked:
            yield chat.event({**_head(reply), "choices": [], "usage": chat.usage_of(reply)})
        yield chat.DONE

    def refuse(self, refusal: RequestRefused) -> dict[str, Any]:
        """Return the body of a refusal."""
        return chat.refused(refusal)


def _choice(place: int, choice: ReplyChoice) -> dict[str, Any]:
    ended = chat.finish(choice)
    finish = "stop" if ended == "tool_calls" else ended
    return {"index": place, "text": choice.content, "logprobs": None, "finish_reason": finish}


def _head(reply: AgentReply) -> dict[str, Any]:
    return {"id": f"cmpl-{reply.id}", "object": "text_completion", "created": reply.created, "model": reply.model}
