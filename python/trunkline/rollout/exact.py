"""Requests and turns whose every token is known: where token-exact mode meets the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trunkline._core import ROOT, TURN, align_ids, give_ids, last_ids, request_ids, settle_ids, take_ids
from trunkline.errors import BadRequest, ConfigError
from trunkline.llm import request as bodies
from trunkline.llm.dialects.hermes import Hermes
from trunkline.llm.tokens import Form, form_of
from trunkline.rollout.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trunkline._core import Tree as Core
    from trunkline.llm.protocol import Choice
    from trunkline.llm.renderer.protocol import Renderer
    from trunkline.llm.tokens import TokenMode
    from trunkline.rollout.agent import Kit
    from trunkline.rollout.conversation import Conversation
    from trunkline.types import JSON, Message

__all__ = ["Exact", "ExactTurns", "Prompt"]

_RAW = Hermes()
"""How models write native calls where no server takes these apart."""

_CLOSING = 64
"""Ids at the end of a turn that a renderer may look at, to see how much of the closing it has already."""


class Prompt(NamedTuple):
    """The body of a request, and what its reply must know.

    Attributes:
        content: The body, in one piece or in several.
        end: Bytes of it that depend on the draws.
        form: Where it goes and how the reply is read.
        context: The drift of a prompt that is sent as ids, if it drifts.
        parting: What to do with the ids of a prompt that the server makes; None where it is sent as ids.
    """

    content: bytes | list[bytes]
    end: int
    form: Form
    context: int | None
    parting: tuple[str, int] | None


class _Way(NamedTuple):
    """How an agent's model is asked.

    Attributes:
        kit: The agent; it is kept here, so that its id is not used again.
        form: The constant parts of its requests.
        renderer: Writes its prompts; None where the server does.
        tools: Tool definitions, for the renderer.
        parting: What to do with a prompt that drifts.
    """

    kit: Kit
    form: Form
    renderer: Renderer | None
    tools: Sequence[JSON]
    parting: tuple[str, int]


class Exact:
    """Makes prompts of token ids for all trees of a worker, or asks for those that the server makes.

    Args:
        mode: How the server is asked.
        renderer: Makes the renderer of a model; it is not asked in a chat.
    """

    def __init__(self, mode: TokenMode, renderer: Callable[[str], Renderer]) -> None:
        self._mode = mode
        self._renderer = renderer
        self._ways: dict[int, _Way] = {}

    async def prompt(self, core: Core, kit: Kit, leaf: int, said: Conversation, seed: int, n: int) -> Prompt:
        """Make the prompt of a turn; where it is sent as ids, every node up to ``leaf`` has its own after that.

        Args:
            core: The tree.
            kit: Who is asked.
            leaf: The node whose path is the conversation.
            said: The conversation in pieces.
            seed: Seed of the first draw.
            n: Draws wanted.

        Raises:
            BadRequest: The template does not take this conversation.
            LLMError: A server that renders gave no answer.
        """
        way = self._way(kit)
        form = way.form
        end = bodies.draws(seed, n, form.route)
        tail = form.constant + end
        if way.renderer is None:
            return Prompt(said.body(leaf, form.head, tail), len(end), form, None, way.parting)
        try:
            context = await _settle(core, leaf, way.renderer, way)
        except ConfigError as error:
            raise BadRequest(f"the prompt cannot be rendered: {error}") from None
        return Prompt(request_ids(core, leaf, form.head, tail, context), len(end), form, context, None)

    def heard(self, kit: Kit, choice: Choice) -> Choice:
        """Return a turn that is on a tree as the program was given it.

        Args:
            kit: Who said it.
            choice: The turn.
        """
        return _apart(self._way(kit).form, kit, choice)

    def _way(self, kit: Kit) -> _Way:
        known = self._ways.get(id(kit))
        if known is None:
            model, definitions = kit.agent.model, kit.toolbox.definitions() if kit.speech.native else b""
            mode, sampling = self._mode, kit.speech.sampling
            form = form_of(mode, model, sampling, definitions)
            renderer = None if mode.api == "chat" else self._renderer(model)
            tools = msgspec.json.decode(definitions) if definitions else ()
            # Where a text stops turns, their last ids are words, and say not where a server's own rendering ends them.
            blind = mode.api == "chat" and mode.drift == "bridge" and sampling.stop is not None
            parting = "realign" if blind else mode.drift, mode.realign_limit
            known = self._ways[id(kit)] = _Way(kit, form, renderer, tools, parting)
        return known


async def _settle(core: Core, leaf: int, renderer: Renderer, way: _Way) -> int | None:
    """Give ids to the nodes that have none; return the context that a drift makes."""
    policy, limit = way.parting
    if policy == "bridge" and not _pending(core, leaf) and len(core.tokens_of(leaf) or ()):
        return None
    turn, since = _last_turn(core, leaf)
    if policy == "bridge" and turn:
        more = await renderer.extend(last_ids(core, turn, _CLOSING), _messages(core, since))
        # Only now, since others may have been given theirs meanwhile.
        if since == _pending(core, leaf):
            give_ids(core, leaf, more)
            return None
        # Another rollout has passed some of these nodes with others behind them.
        ids = [*last_ids(core, turn), *more]
    else:
        ids = await renderer.render(_messages(core, core.path(leaf)), way.tools)
    return settle_ids(core, leaf, ids, policy, limit)


def _pending(core: Core, leaf: int) -> list[int]:
    """Nodes up to this one from the first without ids on."""
    return align_ids(core, leaf, ())[2]


class ExactTurns(Turns):
    """Turns with their token ids; see :class:`Turns`.

    Args:
        prompt: The prompt that was sent.
        leaf: The node it was sent for.
        rest: As for :class:`Turns`.
    """

    def __init__(self, prompt: Prompt, leaf: int, *rest: Any) -> None:
        super().__init__(*rest)
        self._prompt = prompt
        self._leaf = leaf

    def _take(self, rollouts: Sequence[int], data: bytes, attempts: int, micros: int) -> Any:
        kit, name, prompt = self._kit, self._name, self._prompt
        return take_ids(
            self._core,
            rollouts,
            prompt.form.reading,
            data,
            name(kit.agent.name),
            name(kit.namespace),
            self._turn,
            max(0, attempts - 1),
            micros,
            self._leaf,
            prompt.context,
            prompt.parting,
        )

    def _said(self, choice: Choice) -> Choice:
        """A choice for the program."""
        return _apart(self._prompt.form, self._kit, choice)


def _apart(form: Form, kit: Kit, choice: Choice) -> Choice:
    """Read native calls where no server has taken them out of the text."""
    if form.route == bodies.CHAT or not kit.speech.native:
        return choice
    parsed = _RAW.parse(choice, ())
    choice.content, choice.tool_calls = parsed.answer or "", parsed.calls
    return choice


def _last_turn(core: Core, leaf: int) -> tuple[int, list[int]]:
    """The last model turn on the path to a node, the root if there is none, and the nodes after it."""
    since: list[int] = []
    node, facts = leaf, core.node(leaf)
    while facts.kind not in {ROOT, TURN}:
        since.append(node)
        node, facts = facts.parent, core.node(facts.parent)
    return node, since[::-1]


def _messages(core: Core, nodes: Sequence[int]) -> list[Message]:
    return [msgspec.json.decode(core.message(node)) for node in nodes]
