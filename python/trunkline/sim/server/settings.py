"""What a server can be told at start: how the model errs, and which real servers' habits it imitates."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from trunkline.sim.server.latency import Latency

__all__ = ["MOST_PORT", "Settings"]

MOST_PORT: Final = 65535
"""The highest port there is."""

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one server.

    Attributes:
        preset: How models err whose name carries no preset.
        dials: Changes to that preset, by dial.
        latency: The latency model, or ``None`` to answer at once.
        tool_logprobs: Whether the tokens of tool calls have log-probs.
        noncanonical: Probability of sampling a merged token as its two parts.
        reasoning: Where thinking is returned: in the content between tags, in ``reasoning_content``, or not.
        history_thinking: ``keep`` the thinking of earlier replies in the prompt, or ``drop`` it.
        max_context: Most tokens of prompt and reply together.
        cache_tokens: Size of the prefix cache in tokens; 0 turns it off.
        ignore_n: Always return one choice.
        ignore_seed: Draw a new seed for each request, whatever it says.
        fail_rate: Share of requests that fail with 429 or 500.
        fail_seed: What decides which ones.
        api_key: The key that requests must carry; empty asks for none.
    """

    preset: str = "default"
    dials: dict[str, str | int | float] = {}
    latency: Latency | None = None
    tool_logprobs: bool = True
    noncanonical: Share = 0.0
    reasoning: Literal["content", "field", "dropped"] = "content"
    history_thinking: Literal["keep", "drop"] = "keep"
    max_context: Count = 131072
    cache_tokens: Annotated[int, msgspec.Meta(ge=0)] = 2_000_000
    ignore_n: bool = False
    ignore_seed: bool = False
    fail_rate: Share = 0.0
    fail_seed: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    api_key: str = ""
