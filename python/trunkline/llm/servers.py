"""What a server says of itself: its software, and the sizes that bound a run."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from trunkline.llm.http.client import HttpLLM
    from trunkline.llm.http.transport import Answer

_NAMES: Final = {"llamacpp": "llama.cpp", "sglang": "SGLang", "vllm": "vLLM"}
"""Software by the owner that it lists for its models."""

REPORTS_CACHED: Final = {"vLLM": "--enable-prompt-tokens-details", "SGLang": "--enable-cache-report"}
"""Options of servers that make usage tell how many prompt tokens were cached."""

ADVICE: Final = {
    "llama.cpp": (
        (
            "connections",
            "llama.cpp may hold a thread for each: start it with --threads-http N, N above --max-concurrency of a run",
        ),
        ("given up", "llama.cpp generates on what a client no longer waits for; max_tokens bounds that"),
    ),
    "LiteLLM": (("behind it", "LiteLLM passes on what the server behind it gives; probe that server, too"),),
}
"""What a user should know of a server, by its software: labels and texts."""

_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Found = TypeVar("_Found", bound=msgspec.Struct)


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself.

    Attributes:
        software: Its name; empty where it is not known.
        context: Tokens that prompt and completion of one request may have together; None where it does not say.
        slots: Requests that it works on at once, and the most completions of one request; None where it does not say.
    """

    software: str = ""
    context: int | None = None
    slots: int | None = None


async def find_facts(llm: HttpLLM, model: str) -> ServerFacts:
    """Ask a server for its models, and llama.cpp for its settings; what is missing or wrong stays unknown."""
    answer = await llm.get("/models")
    listed = _read(answer, _Models).data
    entry = next((one for one in listed if one.id == model), listed[0] if len(listed) == 1 else _Model())
    software = _NAMES.get(entry.owned_by, "")
    if answer is not None and "x-litellm-version" in answer.headers:
        software = "LiteLLM"
    elif answer is not None and answer.headers.get("Server") == "llama.cpp":
        software = "llama.cpp"
    settings = _read(await llm.get("//props"), _Properties) if software == "llama.cpp" else _Properties()
    context = settings.default_generation_settings.n_ctx or entry.max_model_len or entry.context_length
    return ServerFacts(software=software, context=context, slots=settings.total_slots)


class _Model(msgspec.Struct):
    id: str = ""
    owned_by: str = ""
    max_model_len: _Size | None = None
    context_length: _Size | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Generation(msgspec.Struct):
    n_ctx: _Size | None = None


class _Properties(msgspec.Struct):
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)
    total_slots: _Size | None = None


def _read(answer: Answer | None, kind: type[_Found]) -> _Found:
    try:
        return msgspec.json.decode(
            b"{}" if answer is None or answer.status != HTTPStatus.OK else answer.body, type=kind
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return kind()
