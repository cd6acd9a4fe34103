"""Token-exact mode: every node of a tree has the ids that the engine really saw and sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from trunkline._core import Reading
from trunkline.bounds import shown, text, whole
from trunkline.errors import ConfigError
from trunkline.llm import request
from trunkline.tree.weights import number_of

if TYPE_CHECKING:
    from trunkline.llm.request import Sampling
    from trunkline.types import JSON

__all__ = ["Form", "TokenMode", "form_of"]

_APIS: Final = ("chat", "completions", "generate")
_POLICIES: Final = ("bridge", "realign", "fork")
_encode = msgspec.json.Encoder(order="sorted").encode


class TokenMode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask a server for token ids and log-probs, and keep them on the tree; for ``trunkline.LLM(tokens=...)``.

    Attributes:
        api: How the server is asked. ``chat``: chat completions; the server renders, and says which ids it rendered
            (vLLM's ``return_token_ids``). ``completions``: ``/v1/completions`` with the path's ids as the prompt.
            ``generate``: SGLang's ``/generate`` with the path's ids. With the last two what was sampled is never
            rendered again; a renderer writes what comes between.
        drift: What becomes of a prompt whose ids do not begin with those of its path, as when a server that renders
            anew cuts sampled words into other tokens. ``bridge`` keeps the sampled ids and appends the new messages' to
            them; where it cannot tell those apart, as never in a chat with stop strings, it realigns. ``realign`` takes
            what the model was given for this turn and those after it, where it is not trained. ``fork`` does so too and
            begins a training sample of its own.
    realign_limit: A realignment that would replace this many ids of the path, or more, forks. The default is TRL's
            ``fork_threshold``.
        tokenizer: Renders here, with this ``tokenizer.json`` (or the folder it is in) and the chat template beside it;
            None asks the server's ``/tokenize``.
        template: Path of a chat template to use with ``tokenizer`` instead.

    Raises:
        ConfigError: A field has a value it cannot have.
    """

    api: str = "chat"
    drift: str = "bridge"
    realign_limit: int = 1024
    tokenizer: str | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        for field, known in (("api", _APIS), ("drift", _POLICIES)):
            if getattr(self, field) not in known:
                given = shown(getattr(self, field))
                raise ConfigError(f"TokenMode: {field} must be one of {', '.join(known)}, not {given}")
        whole("TokenMode: realign_limit", self.realign_limit, 1, 2**31 - 1)
        for field in ("tokenizer", "template"):
            if getattr(self, field) is not None and not text(f"TokenMode: {field}", getattr(self, field)):
                raise ConfigError(f"TokenMode: {field} is empty; give a path")
        if self.tokenizer is not None and self.api == "chat":
            raise ConfigError("TokenMode: tokenizer is of no use with api='chat', where the server renders")
        if self.template is not None and self.tokenizer is None:
            raise ConfigError("TokenMode: template needs tokenizer, the path of the tokenizer.json that goes with it")


class Form(NamedTuple):
    """The constant parts of requests in one mode, and how their replies are read.

    Attributes:
        head: The body up to the first message or id.
        constant: The body after the last one, up to what depends on the draws.
        route: Where it goes.
        reading: How replies are read.
    """

    head: bytes
    constant: bytes
    route: str
    reading: Reading


def form_of(mode: TokenMode, model: str, sampling: Sampling, tools: bytes = b"", version: str | None = None) -> Form:
    """Make the constant parts of an agent's requests.

    Args:
        mode: How the server is asked.
        model: The model's name there.
        sampling: How to sample; log-probs are asked for whatever it says.
        tools: Tool definitions as a JSON array; a chat's body has them, elsewhere the renderer writes them.
        version: Of the weights that are asked; each token keeps its number.

    Raises:
        ConfigError: The mode needs ``sampling.max_tokens``, since servers stop after 16 or 128 tokens without it, or
            cannot keep a field of ``sampling.extra``.
    """
    number = number_of(version)
    if mode.api == "chat":
        extra = {**sampling.extra, "return_token_ids": True}
        asking = msgspec.structs.replace(sampling, logprobs=True, extra=extra)
        constant = request.constant(asking, tools)
        return Form(request.head(model), constant, request.CHAT, Reading(version=number))
    if sampling.max_tokens is None:
        raise ConfigError(
            f"TokenMode(api={mode.api!r}) needs sampling.max_tokens: servers have a low limit of their own"
        )
    fields = request.fields(sampling)
    if "chat_template_kwargs" in fields:
        raise ConfigError(
            f"TokenMode(api={mode.api!r}) cannot keep sampling.extra['chat_template_kwargs']: the renderer writes the "
            "prompt; use a template of your own (TokenMode(tokenizer=..., template=...)) or api='chat'"
        )
    top = fields.pop("top_logprobs", 0)
    fields.pop("logprobs", None)
    if mode.api == "completions":
        constant = b"]," + _inside({**fields, "logprobs": top, "return_token_ids": True})
        return Form(_head(model, "prompt"), constant, request.COMPLETIONS, Reading(form="completion", version=number))
    fields["max_new_tokens"] = fields.pop("max_tokens")
    # vLLM's name for no_stop_trim, which dialects send beside it; SGLang refuses a parameter that it does not know.
    if fields.pop("include_stop_str_in_output", None) is not None:
        fields.setdefault("no_stop_trim", True)
    asked: dict[str, JSON] = {"return_logprob": True, "return_text_in_logprobs": True, "top_logprobs_num": top}
    constant = b"]," + _inside(asked) + b',"sampling_params":{' + _inside(fields)
    return Form(_head(model, "input_ids"), constant, request.GENERATE, Reading(form="generate", version=number))


def _head(model: str, prompt: str) -> bytes:
    return b'{"model":' + _encode(model) + b',"' + prompt.encode() + b'":['


def _inside(fields: dict[str, JSON]) -> bytes:
    """The members of an object, without its braces."""
    return _encode(fields)[1:-1]
