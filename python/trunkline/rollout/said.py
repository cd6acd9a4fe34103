"""What a program is given: a model turn, or a message that is on its path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline.llm.protocol import Choice, ToolCall
    from trunkline.rollout.agent import Kit

__all__ = ["Answered", "Cut", "Noted", "Sent"]


class Cut(NamedTuple):
    """A message of a request that is cut into pieces, which the tree holds.

    Attributes:
        pieces: Their numbers in the tree.
    """

    pieces: tuple[int, ...]


class Sent(NamedTuple):
    """All that a request shows a model, as the tree has it.

    Attributes:
        context: Its number in the tree.
    """

    context: int


class Noted(NamedTuple):
    """A message that is on the path.

    Attributes:
        text: What it says.
        node: Its node in the tree.
        ok: Whether the tool that says it ran and returned; true for a message of no tool.
    """

    text: str
    node: int
    ok: bool = True


class Answered:
    """A model turn that was asked for.

    Attributes:
        text: What the model said.
        reasoning: What it thought, where the server returned that beside the text.
        finish: Why it stopped, in the server's word.
        node: Its node in the tree.
        prompt: Prompt tokens, as the server reports them; None where it does not.
        generated: Completion tokens, likewise.
        note: What the program noted of it when it came.
    """

    __slots__ = ("_choice", "_kit", "finish", "generated", "node", "note", "prompt", "reasoning", "text")

    def __init__(
        self, kit: Kit, choice: Choice, node: int, prompt: int | None, generated: int | None, note: Any = None
    ) -> None:
        self._kit = kit
        self._choice = choice
        self.text = choice.content
        self.reasoning = choice.reasoning
        self.finish = choice.finish
        self.node = node
        self.prompt = prompt
        self.generated = generated
        self.note = note

    @property
    def calls(self) -> Sequence[ToolCall]:
        """Tool calls, as the agent's dialect reads them.

        Raises:
            LLMError: They cannot be read.
        """
        return self._kit.speech.read(self._choice).calls

    @property
    def answer(self) -> str | None:
        """The text, where the agent's dialect reads an answer in it.

        Raises:
            LLMError: It cannot be read.
        """
        return self._kit.speech.read(self._choice).answer

    def __str__(self) -> str:
        return self.text
