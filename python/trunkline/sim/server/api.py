"""Choices in the forms of OpenAI's and SGLang's responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from trunkline.sim.model.chat_template import parts, thinking_in
from trunkline.sim.server.requests import ApiError
from trunkline.sim.server.sampling import chat_logprobs, completion_logprobs, keep, listed, token_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.sim.server.options import Settings
    from trunkline.sim.server.requests import ChatRequest, CompletionRequest
    from trunkline.sim.server.sampling import Generated


__all__ = [
    "GenerateRequest",
    "chat_choice",
    "chat_deltas",
    "completion_choice",
    "completion_deltas",
    "generated_object",
    "pieces",
    "spread",
]


_PIECE: Final = 24


def chat_choice(generated: Generated, index: int, request: ChatRequest, settings: Settings) -> dict[str, Any]:
    """One choice of a chat response."""
    content = generated.text
    thinking = thinking_in(content)
    behind = thinking.end() if thinking else 0
    calling = bool(request.tools) and request.tool_choice != "none"
    calls = parts(content).calls if calling else ()
    if calls:
        content = content[: content.index("<tool_call>", behind)]
    if settings.reasoning != "content":
        content = content[behind:]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if settings.reasoning == "field" and thinking:
        message["reasoning_content"] = thinking[1]
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{generated.key.hex()[:20]}{place}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(calls)
        ]
    finish = generated.finish
    if calls and finish == "stop" and generated.stopped_by is None:
        finish = "tool_calls"
    choice: dict[str, Any] = {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": generated.stopped_by,
    }
    if request.logprobs or request.return_token_ids:
        visible = settings.reasoning != "dropped"
        if request.logprobs:
            places = keep(generated, thinking=visible, calls=settings.tool_logprobs)
            choice["logprobs"] = {"content": chat_logprobs(generated, request.top_logprobs or 0, places)}
        if request.return_token_ids:
            places = keep(generated, thinking=visible, calls=True)
            choice["token_ids"] = [generated.tokens[place].id for place in places]
    return choice


def chat_deltas(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same choice as the choices of a stream's chunks, which joined are the whole again."""
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in pieces(message.get("reasoning_content") or "")]
    deltas += [{"content": piece} for piece in pieces(message["content"] or "")]
    for place, call in enumerate(message.get("tool_calls", ())):
        head = {**call, "index": place, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        deltas += [
            {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}
            for piece in pieces(call["function"]["arguments"])
        ]
    logprobs = spread(choice["logprobs"]["content"] if choice["logprobs"] else [], len(deltas))
    ids = spread(choice.get("token_ids", []), len(deltas))
    for number, delta in enumerate(deltas):
        chunk: dict[str, Any] = {
            "index": choice["index"],
            "delta": delta,
            "logprobs": {"content": logprobs[number]} if choice["logprobs"] else None,
            "finish_reason": None,
        }
        if "token_ids" in choice:
            chunk["token_ids"] = ids[number]
        yield chunk
    yield {
        "index": choice["index"],
        "delta": {},
        "logprobs": None,
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice["stop_reason"],
    }


def pieces(text: str) -> list[str]:
    """A text in the pieces of a stream."""
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def spread(items: list[Any], chunks: int) -> list[list[Any]]:
    """Items in order over a number of chunks, about as many to each."""
    size = len(items)
    return [items[size * part // chunks : size * (part + 1) // chunks] for part in range(chunks)]


def completion_choice(
    generated: Generated, index: int, request: CompletionRequest, prompt_ids: list[int]
) -> dict[str, Any]:
    """One choice of a completion response, with the ids of its prompt where ids were asked for."""
    choice: dict[str, Any] = {
        "index": index,
        "text": generated.text,
        "logprobs": None,
        "finish_reason": generated.finish,
        "stop_reason": generated.stopped_by,
    }
    if request.logprobs is not None:
        choice["logprobs"] = completion_logprobs(generated, request.logprobs)
    if request.return_token_ids:
        choice["prompt_token_ids"] = prompt_ids
        choice["token_ids"] = generated.ids
    return choice


def completion_deltas(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same choice as the choices of a stream's chunks."""
    texts = pieces(choice["text"]) or [""]
    ids = spread(choice.get("token_ids", []), len(texts))
    columns = {name: spread(column, len(texts)) for name, column in (choice["logprobs"] or {}).items()}
    for number, text in enumerate(texts):
        last = number == len(texts) - 1
        chunk: dict[str, Any] = {
            "index": choice["index"],
            "text": text,
            "logprobs": {name: column[number] for name, column in columns.items()} if columns else None,
            "finish_reason": choice["finish_reason"] if last else None,
        }
        if "token_ids" in choice:
            chunk["token_ids"] = ids[number]
            if number == 0:
                chunk["prompt_token_ids"] = choice["prompt_token_ids"]
        yield chunk


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """``sampling_params``; unknown fields are ignored."""

    n: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = msgspec.field(default=128, name="max_new_tokens")
    temperature: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = msgspec.field(default=None, name="sampling_seed")
    include_stop_str_in_output: bool | None = msgspec.field(default=None, name="no_stop_trim")

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stop = self.stop or ()
        return (stop,) if isinstance(stop, str) else tuple(stop)


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of ``/generate``, for one prompt."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = SamplingParams()
    return_logprob: bool | None = None
    top_logprobs_num: Annotated[int, msgspec.Meta(ge=0, le=20)] = 0
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    model: str = "sim-agent"

    def prompt(self) -> str | list[int]:
        """The text or ids to continue.

        Raises:
            ApiError: Both are given, or neither, or a stream is asked for.
        """
        if self.stream:
            raise ApiError(400, "stream: is not supported here", param="stream")
        given = [each for each in (self.text, self.input_ids) if each is not None]
        if len(given) != 1:
            raise ApiError(400, "Either text or input_ids should be provided, and not both.", param="input_ids")
        return given[0]


def generated_object(generated: Generated, request: GenerateRequest, prompt: int, cached: int) -> dict[str, Any]:
    """One completion of ``/generate``, with the prompt's tokens and the cached ones among them."""
    reason: dict[str, Any] = {"type": generated.finish}
    if generated.finish == "length":
        reason["length"] = len(generated.tokens)
    else:
        reason["matched"] = generated.stopped_by or generated.ids[-1]
    meta: dict[str, Any] = {
        "id": generated.key.hex(),
        "finish_reason": reason,
        "prompt_tokens": prompt,
        "completion_tokens": len(generated.tokens),
        "cached_tokens": cached,
    }
    if request.return_logprob:
        spell = token_text if request.return_text_in_logprobs else lambda _token: None
        rows = list(listed(generated, request.top_logprobs_num))
        meta["output_token_logprobs"] = [(own, token, spell(token)) for token, own, _ in rows]
        if request.top_logprobs_num:
            meta["output_top_logprobs"] = [[(value, other, spell(other)) for other, value in top] for *_, top in rows]
    return {"text": generated.text, "output_ids": generated.ids, "meta_info": meta}
