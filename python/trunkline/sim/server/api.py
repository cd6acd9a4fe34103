"""``/v1/chat/completions``: choices as messages, whole or as the chunks of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trunkline.sim.model.chat import parts
from trunkline.sim.server.logprobs import chat_logprobs, keep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.sim.server.generate import Generated
    from trunkline.sim.server.requests import ChatRequest
    from trunkline.sim.server.settings import Settings

__all__ = ["chat_choice", "chat_deltas", "pieces", "spread"]

_PIECE: Final = 24


def chat_choice(generated: Generated, index: int, request: ChatRequest, settings: Settings) -> dict[str, Any]:
    """One choice in the form of a whole response.

    Args:
        generated: What was sampled.
        index: Its place among the choices.
        request: What was asked for.
        settings: Which server is imitated.
    """
    split = parts(generated.text)
    calling = bool(request.tools) and request.tool_choice != "none"
    calls = split.calls if calling else ()
    content = generated.text
    thinking = split.thinking
    if calls:
        content = generated.text[: generated.text.index("<tool_call>", _after_thinking(generated.text))]
    if settings.reasoning != "content" and thinking is not None:
        content = content[_after_thinking(content) :]
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if settings.reasoning == "field" and thinking is not None:
        message["reasoning_content"] = thinking
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
    """The same choice as the choices of a stream's chunks; put together they are the whole again.

    Args:
        choice: As ``chat_choice`` made it.
    """
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
    """A text in the pieces in which a stream sends it."""
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def spread(items: list[Any], chunks: int) -> list[list[Any]]:
    """Items dealt to a number of chunks in order, about as many to each."""
    size = len(items)
    return [items[size * part // chunks : size * (part + 1) // chunks] for part in range(chunks)]


def _after_thinking(text: str) -> int:
    """Where the text goes on after its thinking, as ``parts`` divides it."""
    split = parts(text)
    if split.thinking is None:
        return 0
    rest = text.find("</think>")
    if rest < 0:
        return len(text)
    rest += len("</think>")
    return rest + 1 if text[rest : rest + 1] == "\n" else rest
