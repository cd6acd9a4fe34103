"""Whether a server gives log-probs for the regions of a turn: found out with one turn as the agent would ask for it."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from trunkline._core import read_reply
from trunkline.errors import BadRequest, ConfigError, ReplyError
from trunkline.llm import request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import Reply
    from trunkline.llm.http import HttpLLM
    from trunkline.llm.request import Sampling

__all__ = ["REGIONS", "Regions", "find_regions", "require_region"]

REGIONS: Final = {
    "think": ("think",),
    "tool": ("tool",),
    "all": ("all",),
    "mixed": ("think", "tool"),
}
"""What a strategy may look at, by name, and the regions of a turn that this needs."""

_WORDS: Final = {"think": "thinking", "tool": "tool calls", "all": "all tokens of a turn"}
_ROUTES: Final = {
    "think": "start the server without a reasoning parser",
    "tool": "use dialect='hermes', where calls are text",
    "all": "use dialect='hermes' where calls have none, and no reasoning parser where thinking has none",
}


class Regions(msgspec.Struct, frozen=True, kw_only=True):
    """For which regions of a turn a server gives log-probs: True, False, or None where the model had none to show.

    Attributes:
        site: Who was asked.
        model: The model.
        think: Thinking.
        tool: Tool calls.
        all: Every token of the turn.
    """

    site: str
    model: str
    think: bool | None
    tool: bool | None
    all: bool | None


async def find_regions(
    open_llm: Callable[[], HttpLLM], model: str, sampling: Sampling, messages: Sequence[bytes], tools: bytes = b""
) -> Regions:
    """Ask for a turn, and see which of its tokens have log-probs.

    Args:
        open_llm: Opens a client; a new one for each request, as a server may refuse one of them for good.
        model: The model.
        sampling: How to sample; it asks for log-probs.
        messages: The conversation, encoded: one that makes the model call a tool, if it has any.
        tools: Tool definitions as a JSON array; empty for none.

    Raises:
        ConfigError: The server refuses the request, or its answer is no reply.
        EndpointError: It serves nobody.
        LLMError: It gave no answer.
    """
    body = request.head(model) + b",".join(messages) + request.constant(sampling, tools)
    end = request.draws(None)
    if len(tools) > 2:
        with suppress(ConfigError):  # Not every server can be told to call one.
            return await _ask(open_llm, model, body + b',"tool_choice":"required"' + end)
    return await _ask(open_llm, model, body + end)


def require_region(found: Regions, region: str, who: str) -> None:
    """Refuse a server that gives no log-probs for a region. What did not show is not held against it.

    Args:
        found: What was found.
        region: What is looked at, a key of :data:`REGIONS`.
        who: Who needs it.

    Raises:
        ConfigError: Names the server, the region and what can be done.
    """
    missing = [part for part in REGIONS[region] if getattr(found, part) is False]
    if missing:
        others = [name for name, parts in REGIONS.items() if all(getattr(found, part) for part in parts)]
        ways = [_ROUTES[part] for part in missing]
        ways += ["use LLM(tokens=TokenMode(api='completions')), where the server takes nothing apart"]
        ways += [f"choose a region that has them ({', '.join(others)})"] if others else []
        told = " and ".join(_WORDS[part] for part in missing)
        raise ConfigError(
            f"{found.site} gives no log-probs for {told} of {found.model!r} (region {region!r}, needed by {who}): "
            f"{'; '.join(ways)}; or take a strategy that needs none (Chain, TreeGRPO)"
        )


async def _ask(open_llm: Callable[[], HttpLLM], model: str, body: bytes) -> Regions:
    """What the reply to a body shows."""
    llm = open_llm()
    site = llm.endpoints[0].base_url
    try:
        reply = read_reply(await llm.call(request.CHAT, body))
    except BadRequest as error:
        raise ConfigError(f"{site} refuses to be asked for log-probs of {model!r}: {error}") from None
    except ReplyError as error:
        raise ConfigError(f"{site} was asked for log-probs of {model!r}, and its answer is no reply: {error}") from None
    finally:
        await llm.close()
    if not reply.choices:
        raise ConfigError(f"{site} was asked for log-probs of {model!r}, and its answer has no choice")
    return _regions(reply, site, model)


def _regions(reply: Reply, site: str, model: str) -> Regions:
    choice = reply.choices[0]
    listed = 0 if choice.logprobs is None else len(choice.logprobs)
    think, tool, some = (not math.isnan(figure) for figure in choice.tokens.entropy)
    # Some servers leave the last token out.
    whole = some and (reply.generated is None or listed >= reply.generated - 1)
    thought = bool(choice.reasoning or reply.reasoning) or "<think>" in choice.content
    called = bool(choice.tool_calls) or "<tool_call>" in choice.content
    return Regions(
        site=site,
        model=model,
        think=think if thought else None,
        tool=tool if called else None,
        all=whole,
    )
