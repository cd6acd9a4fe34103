"""What makes a model's turns (``trunkline.llms``): endpoints, engines, sampling, token ids, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline._internal.exports import exports

if TYPE_CHECKING:
    from trunkline.llm.batch.batcher import BatchLLM
    from trunkline.llm.batch.completion import Completion, Prompt
    from trunkline.llm.config import LLM
    from trunkline.llm.dialects.base import Dialect, Parsed
    from trunkline.llm.dialects.builtin import Hermes, SearchR1
    from trunkline.llm.openai_client import ClientLLM
    from trunkline.llm.pricing import Price
    from trunkline.llm.request import Sampling
    from trunkline.llm.token_ids.base import TokenMode
    from trunkline.llm.token_ids.renderers import tokens_with
    from trunkline.llm.types import Limits, Reply, ReplyChoice, Request, Routing, ToolCall

__all__ = [
    "LLM",
    "BatchLLM",
    "ClientLLM",
    "Completion",
    "Dialect",
    "Hermes",
    "Limits",
    "Parsed",
    "Price",
    "Prompt",
    "Reply",
    "ReplyChoice",
    "Request",
    "Routing",
    "Sampling",
    "SearchR1",
    "TokenMode",
    "ToolCall",
    "tokens_with",
]

__getattr__ = exports(
    __name__,
    """
llm.batch.batcher: BatchLLM
llm.batch.completion: Completion Prompt
llm.config: LLM
llm.dialects.base: Dialect Parsed
llm.dialects.builtin: Hermes SearchR1
llm.openai_client: ClientLLM
llm.pricing: Price
llm.request: Sampling
llm.token_ids.base: TokenMode
llm.token_ids.renderers: tokens_with
llm.types: Limits Reply ReplyChoice Request Routing ToolCall
""",
)
