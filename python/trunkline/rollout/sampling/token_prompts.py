"""Requests and turns whose every token is known: where token-exact mode meets the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline._core import MESSAGE, ROOT, TURN, align_ids, give_ids, last_ids, request_ids, settle_ids
from trunkline.errors import BadRequest, ConfigError
from trunkline.llm import request as bodies
from trunkline.llm.token_ids.base import Form, form_of
from trunkline.rollout.sampling.turns import TokenPrompt, TurnReader, taken_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import CoreTree, ReplyOptions
    from trunkline._internal.text import JSON
    from trunkline.agent import CompiledAgent
    from trunkline.llm.request import Sampling
    from trunkline.llm.token_ids.base import Renderer, TokenMode
    from trunkline.llm.types import ReplyChoice
    from trunkline.rollout.types import KeptPrefix
    from trunkline.types import Message

__all__ = ["TokenPrompt", "TokenPromptBuilder", "TokenTurnReader"]

_CLOSING = 64
"""Ids at the end of a turn that a renderer may look at, to see how much of the closing it has already."""


_CHARACTER = 4
"""Bytes of the longest character, so that a token which begins inside one has at most three before it there."""


class _Way(NamedTuple):
    """How an agent's model is asked.

    Attributes:
        compiled: The agent; it is kept here, so that its id is not used again.
        form: The constant parts of its requests.
        renderer: Writes its prompts; None where the server does.
        tools: Tool definitions, for the renderer.
        parting: What to do with a prompt that drifts.
        listing: Whether the server (llama.cpp) lists tokens only where an alternative is asked for.
    """

    compiled: CompiledAgent
    form: Form
    renderer: Renderer | None
    tools: Sequence[JSON]
    parting: tuple[str, int]
    listing: bool = False


_MOST_WAYS = 256


class TokenPromptBuilder:
    """Makes prompts of token ids for all trees of a worker, or asks for those that the server makes.

    Args:
        mode: How the server is asked.
        renderer: Makes the renderer of a model; it is not asked in a chat.
        batch: Whether a batch engine answers, whose completions reach readers as chat completions.
    """

    def __init__(self, mode: TokenMode, renderer: Callable[[str], Renderer], *, batch: bool = False) -> None:
        self._mode = mode
        self._renderer = renderer
        self._batch = batch
        self._ways: dict[int, _Way] = {}

    @property
    def one_by_one(self) -> bool:
        """Whether draws must be asked for one by one: llama.cpp says of the first alone how many ids it should have."""
        return any(way.listing for way in self._ways.values())

    @property
    def inside(self) -> bool:
        """Whether a turn can be gone on from where it is cut: prompts are sent as ids."""
        return self._mode.api != "chat"

    async def prompt(self, core: CoreTree, compiled: CompiledAgent, leaf: int, seed: int, n: int) -> TokenPrompt:
        """Make the prompt of a turn; where it is sent as ids, every node up to ``leaf`` has its own after that.

        Args:
            core: The tree.
            compiled: Who is asked.
            leaf: The node whose path is the conversation.
            seed: Seed of the first draw.
            n: Draws wanted.

        Raises:
            BadRequest: The template does not take this conversation.
            LLMError: A server that renders gave no answer.
        """
        way = self._way(compiled)
        if way.renderer is None:
            form, end = way.form, bodies.draws(seed, n, way.form.route)
            content = core.request(leaf, form.head, form.constant + end)
            return TokenPrompt(content, len(end), self._mode, form, None, way.parting)
        try:
            context = await _settle(core, leaf, way.renderer, way)
        except ConfigError as error:
            raise BadRequest(f"the prompt cannot be rendered: {error}") from None
        form = self._way(compiled).form
        end = bodies.draws(seed, n, form.route)
        tail = form.constant + end
        return TokenPrompt(request_ids(core, leaf, form.head, tail, context), len(end), self._mode, form, context, None)

    def recorded(self, compiled: CompiledAgent, choice: ReplyChoice) -> ReplyChoice:
        """Return a turn that is on a tree as the program was given it.

        Args:
            compiled: Who said it.
            choice: The turn.
        """
        return taken_apart(self._way(compiled).form, compiled, choice)

    async def program(
        self, core: CoreTree, compiled: CompiledAgent, leaf: int, context: int | None, seed: int, draft: int | None
    ) -> TokenPrompt:
        """Make the prompt of one turn of a program.

        Args:
            core: The tree.
            compiled: Who is asked.
            leaf: The node whose path is the conversation.
            context: The messages that are sent instead; None where it is that path.
            seed: Seed of the draw.
            draft: The path with messages behind it that are sent instead; likewise.

        Raises:
            BadRequest: The template does not take this conversation, or the agent cannot be asked in this mode.
            LLMError: A server that renders gave no answer.
        """
        ids: list[int] | None = None
        try:
            way = self._way(compiled)
            if way.renderer is not None:
                ids = await _program_ids(core, leaf, context, draft, way.renderer, way)
        except ConfigError as error:
            raise BadRequest(f"the prompt cannot be rendered: {error}") from None
        form = self._way(compiled).form
        end = bodies.draws(seed, 1, form.route)
        tail = form.constant + end
        if ids is not None:
            content = form.head + msgspec.json.encode(ids)[1:-1] + tail
        elif context is not None:
            content = core.request_context(context, form.head, tail)
        elif draft is not None:
            content = core.request_draft(draft, form.head, tail)
        else:
            content = core.request(leaf, form.head, tail)
        return TokenPrompt(content, len(end), self._mode, form, None, way.parting, None, ids)

    async def within(
        self, core: CoreTree, compiled: CompiledAgent, leaf: int, kept: KeptPrefix, seed: int, n: int
    ) -> TokenPrompt:
        """Make the prompt of a turn that goes on from the beginning of an earlier one.

        It has the ids that the earlier one was given, then those that are kept of it, and may be as long as that one
        might have been.

        Args:
            core: The tree.
            compiled: Who is asked.
            leaf: The node whose path is the conversation; the turn follows it.
            kept: What is kept.
            seed: Seed of the first draw.
            n: Draws wanted.

        Raises:
            BadRequest: What the kept tokens say is not how the turn begins, or they are as many as a turn may have.
            LLMError: A server that decodes gave no answer.
        """
        way = self._way(compiled)
        if way.renderer is None:
            raise BadRequest(f"the first {kept.tokens} tokens of a turn cannot be gone on from in a chat")
        ids, text = await _beginning(core, kept, way.renderer)
        form = self._form(_shorter(compiled, len(ids)), compiled, int(self._way(compiled).listing))
        end = bodies.draws(seed, n, form.route)
        tail = b"".join((*(b",%d" % token for token in ids), form.constant, end))
        context = core.node(kept.turn).context
        content = request_ids(core, leaf, form.head, tail, context)
        return TokenPrompt(content, len(end), self._mode, form, context, None, (kept.turn, len(ids), text))

    def _way(self, compiled: CompiledAgent) -> _Way:
        known = self._ways.get(id(compiled))
        if known is None:
            model, definitions = (
                compiled.agent.model,
                compiled.toolbox.definitions() if compiled.dialect.native else b"",
            )
            mode, sampling = self._mode, compiled.dialect.sampling
            form = self._form(sampling, compiled, definitions=definitions)
            renderer = None if mode.api == "chat" else self._renderer(model)
            tools = msgspec.json.decode(definitions) if definitions else ()
            # Where a text stops turns, their last ids are words, and say not where a server's own rendering ends them.
            blind = mode.api == "chat" and mode.drift == "bridge" and sampling.stop is not None
            parting = "realign" if blind else mode.drift, mode.realign_limit
            known = self._ways[id(compiled)] = _Way(compiled, form, renderer, tools, parting)
            if len(self._ways) > _MOST_WAYS:  # an agent is compiled anew for each weight version
                del self._ways[next(iter(self._ways))]
        if getattr(known.renderer, "template_apart", False) and not known.listing:
            form = self._form(compiled.dialect.sampling, compiled, 1)
            known = self._ways[id(compiled)] = known._replace(form=form, listing=True)
        return known

    def _form(self, sampling: Sampling, compiled: CompiledAgent, least: int = 0, definitions: bytes = b"") -> Form:
        form = form_of(self._mode, compiled.agent.model, sampling, definitions, compiled.version, least=least)
        return form._replace(reading=form.engine_reading) if self._batch else form


async def _program_ids(
    core: CoreTree, leaf: int, context: int | None, draft: int | None, renderer: Renderer, way: _Way
) -> list[int]:
    """The prompt of a program's request. The tree stays as it is until the reply is appended."""
    if context is not None:
        messages = msgspec.json.decode(core.request_context(context, b"[", b"]"))
        return await renderer.render(messages, way.tools)
    path, behind = core.path(leaf), []
    if draft is not None:
        behind = msgspec.json.decode(core.request_draft(draft, b"[", b"]"))[len(path) :]
    turn, since = _last_turn(core, leaf)
    if way.parting[0] == "bridge" and turn:
        more = await renderer.extend(last_ids(core, turn, _CLOSING), [*_messages(core, since), *behind])
        return [*last_ids(core, turn), *more]
    return await renderer.render([*_messages(core, path), *behind], way.tools)


async def _settle(core: CoreTree, leaf: int, renderer: Renderer, way: _Way) -> int | None:
    """Give ids to the nodes that have none; return the context that a drift makes."""
    policy, limit = way.parting
    if policy == "bridge" and not _pending(core, leaf) and len(core.tokens_of(leaf) or ()):
        return None
    turn, since = _last_turn(core, leaf)
    if policy == "bridge" and turn:
        more = await renderer.extend(last_ids(core, turn, _CLOSING), _messages(core, since))
        # Only now, since others may have been given theirs meanwhile. Others may be asked before a message.
        if since == _pending(core, leaf) and all(core.node(node).kind != MESSAGE for node in since):
            give_ids(core, leaf, more)
            return None
        # Another rollout has passed some of these nodes with others behind them.
        ids = [*last_ids(core, turn), *more]
    else:
        ids = await renderer.render(_messages(core, core.path(leaf)), way.tools)
    return settle_ids(core, leaf, ids, policy, limit)


def _pending(core: CoreTree, leaf: int) -> list[int]:
    """Nodes up to this one from the first without ids on."""
    return align_ids(core, leaf, ())[2]


async def _beginning(core: CoreTree, kept: KeptPrefix, renderer: Renderer) -> tuple[list[int], str]:
    """The ids that are kept of a turn, and what they say.

    Where the next one begins inside a character, the ids before it in that character go as well: nobody could put the
    two halves of its text together.
    """
    tokens = core.tokens_of(kept.turn)
    known = [] if tokens is None else list(tokens.ids)
    said = str(msgspec.json.decode(core.message(kept.turn)).get("content") or "")
    for count in range(kept.tokens, max(kept.tokens - _CHARACTER, 0), -1):
        try:
            text = await renderer.decode(known[:count])
        except ConfigError as error:
            raise BadRequest(f"the beginning of a turn cannot be read: {error}") from None
        if text and said.startswith(text):
            return known[:count], text
    raise BadRequest(
        f"what the first {kept.tokens} token ids of a turn spell is not how its text begins, so nothing can go on from "
        "there: the server writes special tokens in another way than its tokenizer"
    )


def _shorter(compiled: CompiledAgent, tokens: int) -> Sampling:
    """Sampling of the rest of a turn, of which so many tokens are there: all of it has one limit."""
    sampling = compiled.dialect.sampling
    left = (sampling.max_tokens or 0) - tokens
    if left < 1:
        raise BadRequest(
            f"{tokens} tokens are kept of a turn that may have {sampling.max_tokens} (sampling.max_tokens)"
        )
    return msgspec.structs.replace(sampling, max_tokens=left)


class TokenTurnReader(TurnReader):
    """Turns with their token ids; see ``TurnReader``.

    Args:
        prompt: The prompt that was sent.
        leaf: The node it was sent for.
        rest: As for ``TurnReader``.
    """

    def __init__(self, prompt: TokenPrompt, leaf: int, *rest: Any) -> None:
        super().__init__(*rest)
        self._prompt = prompt
        self._leaf = leaf
        self._mode, self._engine_reading = prompt.mode, prompt.form.engine_reading

    def _take(
        self,
        rollouts: Sequence[int],
        data: bytes,
        attempts: int,
        micros: int,
        reading: ReplyOptions | None = None,
        *_: Any,
    ) -> Any:
        prompt = self._prompt
        reading = reading or prompt.form.reading
        exact = self._leaf, prompt.context, prompt.parting, prompt.kept
        return super()._take(rollouts, data, attempts, micros, reading, *exact)

    def _program_choice(self, choice: ReplyChoice) -> ReplyChoice:
        """A choice for the program, whole."""
        if self._prompt.kept is not None:
            choice.content = self._prompt.kept[2] + choice.content
        return self._prompt.read(self._compiled, choice)


def _last_turn(core: CoreTree, leaf: int) -> tuple[int, list[int]]:
    """The last model turn on the path to a node, the root if there is none, and the nodes after it."""
    since: list[int] = []
    node, facts = leaf, core.node(leaf)
    while facts.kind not in {ROOT, TURN}:
        since.append(node)
        node, facts = facts.parent, core.node(facts.parent)
    return node, since[::-1]


def _messages(core: CoreTree, nodes: Sequence[int]) -> list[Message]:
    return [msgspec.json.decode(core.message(node)) for node in nodes]
