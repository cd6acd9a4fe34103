"""From a draft to what a server would have sampled: tokens, stop texts, limits, the finish reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.sim.model import draft as drafts
from trunkline.sim.model.bpe import default_bpe
from trunkline.sim.model.draft import Token
from trunkline.sim.world.draws import Draws

if TYPE_CHECKING:
    from trunkline.sim.model.draft import Draft

__all__ = ["END", "Generated", "Limits", "generate"]

END: Final = "<|im_end|>"
"""The token that ends a reply; it is counted and has an id, and its text is not part of the reply."""


class Limits(NamedTuple):
    """Where a reply must end.

    Attributes:
        tokens: Most tokens, the end token included.
        stops: Texts that end it.
        keep_stop: Whether the stop text stays in the reply.
    """

    tokens: int
    stops: tuple[str, ...] = ()
    keep_stop: bool = False


class Generated(NamedTuple):
    """One choice.

    Attributes:
        tokens: What was sampled, with branches where log-probs were asked for.
        text: The raw text.
        finish: ``stop`` or ``length``.
        stopped_by: The stop text, where one ended it.
        key: What small variations of its log-probs are drawn from.
    """

    tokens: list[Token]
    text: str
    finish: str
    stopped_by: str | None
    key: bytes

    @property
    def ids(self) -> list[int]:
        """Its token ids."""
        return [token.id for token in self.tokens]


def generate(draft: Draft, limits: Limits, key: bytes, *, logprobs: bool, noncanonical: float) -> Generated:
    """Sample a draft as a server would.

    Args:
        draft: The reply without limits.
        limits: Where it must end.
        key: Names this very choice: the digest of conversation, settings and seed.
        logprobs: Whether branches are needed.
        noncanonical: Probability of breaking an ordinary merged token in two.
    """
    bpe = default_bpe()
    if logprobs or noncanonical:
        tokens = drafts.tokens(draft, END)
    else:
        tokens = [Token(token) for token in drafts.ids(draft, END)]
    if noncanonical:
        draws = Draws("noncanonical", key.hex())
        # A token at a branch stays whole, since the mass of its alternatives is that of whole tokens.
        tokens = [
            part
            for token in tokens
            for part in ([token] if token.branches else [Token(i) for i in bpe.split([token.id], noncanonical, draws)])
        ]
    text = draft.text()
    finish, stopped_by = "stop", None
    if limits.stops:
        found = min(
            ((place, stop) for stop in limits.stops if (place := text.find(stop)) >= 0),
            key=lambda item: item[0] + len(item[1]),
            default=None,
        )
        if found is not None:
            place, stopped_by = found
            end = place + len(stopped_by)
            tokens = _until(tokens, len(text[:end].encode("utf-8", "replace")))
            text = text[:end] if limits.keep_stop else text[:place]
    if len(tokens) > limits.tokens:
        tokens = tokens[: limits.tokens]
        text = bpe.decode([token.id for token in tokens]).decode("utf-8", "ignore")
        finish, stopped_by = "length", None
    return Generated(tokens, text, finish, stopped_by, key)


def _until(tokens: list[Token], size: int) -> list[Token]:
    """The tokens up to and including the one that completes this many bytes."""
    bpe = default_bpe()
    reached = 0
    for count, token in enumerate(tokens, 1):
        reached += len(bpe.token_bytes(token.id))
        if reached >= size:
            return tokens[:count]
    return tokens
