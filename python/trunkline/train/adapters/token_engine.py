"""An LLM over an engine of a trainer that takes token ids and answers with token ids."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from trunkline._internal.validation import check_int, short_repr
from trunkline.errors import ConfigError, LLMError
from trunkline.llm.batch.batcher import BatchLLM
from trunkline.llm.batch.completion import Completion
from trunkline.llm.token_ids.base import TokenMode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from trunkline.llm.batch.completion import Prompt


class Sampled(NamedTuple):
    """What an engine sampled: ids, their log-probabilities, and whether a limit of length cut it."""

    ids: list[int]
    logprobs: list[float]
    cut: bool


_READING = {"logprobs", "return_token_ids", "include_stop_str_in_output", "skip_special_tokens", "no_stop_trim"}
"""Fields of a request that say what of an answer is shown: here ids are, and the text is read from them."""


class TokenEngine:
    """A batch engine that asks for each prompt alone, at once, and reads the text of what was sampled from its ids.

    Args:
        sample: Samples: given the ids of a prompt, the sampling parameters, and the key that prompts of one tree share.
        tokenizer: Of transformers; its chat template renders conversations.
        params: The sampling parameters of the trainer, None for one that is not set. A request may add others and have
            a lower ``max_tokens``, and not change these.
    """

    def __init__(
        self,
        sample: Callable[[list[int], dict[str, Any], int], Awaitable[Sampled]],
        tokenizer: Any,
        params: Mapping[str, Any],
    ) -> None:
        self._sample = sample
        self._tokenizer = tokenizer
        self._params = {name: value for name, value in params.items() if value is not None}
        self._special = set(tokenizer.all_special_ids)

    async def generate(self, prompts: list[Prompt]) -> list[Completion]:
        """Complete the one prompt of a batch."""
        (prompt,) = prompts
        params = {name: value for name, value in prompt.sampling.items() if name not in _READING and value is not None}
        for name, value in self._params.items():
            if name == "max_tokens":
                params[name] = min(value, params.get(name, value))
            elif params.setdefault(name, value) != value:
                raise ConfigError(
                    f"a request has {name}={short_repr(params[name])}, and the trainer samples with "
                    f"{name}={short_repr(value)}: leave it out of the agent's sampling, or set it in the trainer"
                )
        sampled = await self._sample(prompt.token_ids or [], params, prompt.key)
        if not sampled.ids:
            raise LLMError("the trainer's engine sampled nothing", retryable=True)
        shown = sampled.ids
        if not sampled.cut and shown[-1] in self._special:
            shown = shown[:-1]
        text = self._tokenizer.decode(shown, skip_special_tokens=False)
        finish = "length" if sampled.cut else "stop"
        return [Completion(text=text, finish=finish, token_ids=sampled.ids, logprobs=list(sampled.logprobs))]


def token_llm(engine: TokenEngine, folder: str, max_concurrency: int) -> BatchLLM:
    """Make the LLM of an engine; ``folder`` is where the files of its tokenizer are."""
    check_int("max_concurrency", max_concurrency, 1)
    return BatchLLM(
        engine,
        max_batch=1,
        max_wait=0,
        tool_wait=0,
        calls=max_concurrency,
        max_concurrency=max_concurrency,
        tokens=TokenMode(api="completions", tokenizer=folder),
    )


class TokenizerFolder:
    """A temporary folder with the files of a tokenizer of transformers, which ends with this object."""

    def __init__(self, tokenizer: Any) -> None:
        self.path = tempfile.mkdtemp(prefix="trunkline-tokenizer-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        tokenizer.save_pretrained(self.path)
