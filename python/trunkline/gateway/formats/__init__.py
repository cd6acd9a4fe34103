"""Interfaces of model servers: reads what an agent asks, writes what it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.gateway.formats.anthropic import AnthropicFormat
from trunkline.gateway.formats.chat import ChatFormat
from trunkline.gateway.formats.completions import CompletionsFormat
from trunkline.gateway.formats.responses import ResponsesFormat

if TYPE_CHECKING:
    from trunkline.gateway.types import Format

FORMATS: Final[dict[str, Format]] = {
    form.route: form for form in (ChatFormat(), ResponsesFormat(), CompletionsFormat(), AnthropicFormat())
}
"""By route."""
