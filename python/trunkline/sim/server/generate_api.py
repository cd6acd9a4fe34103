"""``/generate`` in SGLang's form: token ids or a text in, text, ids and log-probs out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from trunkline.sim.server.logprobs import listed, token_text
from trunkline.sim.server.requests import ApiError

if TYPE_CHECKING:
    from trunkline.sim.server.generate import Generated

__all__ = ["GenerateRequest", "generated_object"]

_USUAL_LENGTH = 128


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """``sampling_params``; what it does not know is ignored."""

    n: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = _USUAL_LENGTH
    temperature: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    stop: str | list[str] | None = None
    sampling_seed: int | None = None
    no_stop_trim: bool | None = None


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

    @property
    def seed(self) -> int | None:
        """The seed of the first completion."""
        return self.sampling_params.sampling_seed

    @property
    def temperature(self) -> float | None:
        """The temperature."""
        return self.sampling_params.temperature

    @property
    def top_p(self) -> float | None:
        """The nucleus."""
        return self.sampling_params.top_p

    @property
    def include_stop_str_in_output(self) -> bool | None:
        """Whether a stop text stays in the text."""
        return self.sampling_params.no_stop_trim

    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stop = self.sampling_params.stop or ()
        return (stop,) if isinstance(stop, str) else tuple(stop)

    def prompt(self) -> str | list[int]:
        """What to continue.

        Raises:
            ApiError: There are both, or neither, or a stream is wanted.
        """
        if self.stream:
            raise ApiError(400, "stream: is not supported here", param="stream")
        given = [each for each in (self.text, self.input_ids) if each is not None]
        if len(given) != 1:
            raise ApiError(400, "Either text or input_ids should be provided, and not both.", param="input_ids")
        return given[0]


def generated_object(generated: Generated, request: GenerateRequest, prompt: int, cached: int) -> dict[str, Any]:
    """One completion as ``/generate`` has it.

    Args:
        generated: What was sampled.
        request: What was asked for.
        prompt: Tokens of the prompt.
        cached: Of these, tokens that a cache held.
    """
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
        spell = token_text if request.return_text_in_logprobs else _unspelled
        rows = list(listed(generated, request.top_logprobs_num))
        meta["output_token_logprobs"] = [(own, token, spell(token)) for token, own, _ in rows]
        if request.top_logprobs_num:
            meta["output_top_logprobs"] = [[(value, other, spell(other)) for other, value in top] for *_, top in rows]
    return {"text": generated.text, "output_ids": generated.ids, "meta_info": meta}


def _unspelled(_token: int) -> None:
    """The text of a token where nobody asked for it."""
