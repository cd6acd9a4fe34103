"""Which renderer a mode uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.llm.renderer.server import ServerRenderer

if TYPE_CHECKING:
    from collections.abc import Callable

    from trunkline.llm.renderer.protocol import Renderer
    from trunkline.llm.renderer.server import Post
    from trunkline.llm.tokens import TokenMode

__all__ = ["renderers"]


def renderers(mode: TokenMode, post: Post) -> Callable[[str], Renderer]:
    """Return what makes the renderer of a model, by its name at the server.

    Args:
        mode: Says which renderer it is.
        post: Posts to the server.

    Raises:
        ConfigError: A file of the tokenizer cannot be used, or the extra ``tokens`` is not installed.
    """
    if mode.tokenizer is None:
        return lambda model: ServerRenderer(post, model)
    from trunkline.llm.renderer.local import LocalRenderer  # noqa: PLC0415 - only where it is used

    local = LocalRenderer(mode.tokenizer, mode.template)
    return lambda _model: local
