"""``/v1/completions``: choices as raw text, whole or as the chunks of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trunkline.sim.server.chat_api import pieces, spread
from trunkline.sim.server.logprobs import completion_logprobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trunkline.sim.server.generate import Generated
    from trunkline.sim.server.requests import CompletionRequest

__all__ = ["completion_choice", "completion_deltas"]


def completion_choice(
    generated: Generated, index: int, request: CompletionRequest, prompt_ids: list[int]
) -> dict[str, Any]:
    """One choice in the form of a whole response.

    Args:
        generated: What was sampled.
        index: Its place among the choices of all prompts.
        request: What was asked for.
        prompt_ids: The ids of this choice's prompt, returned beside its own where ids were asked for.
    """
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
    """The same choice as the choices of a stream's chunks.

    Args:
        choice: As ``completion_choice`` made it.
    """
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
