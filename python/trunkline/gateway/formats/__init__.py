"""Interfaces of model servers: reads what an agent asks, writes what it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trunkline.gateway.formats.chat import ChatFormat

if TYPE_CHECKING:
    from trunkline.gateway.types import Format

FORMATS: Final[dict[str, Format]] = {form.route: form for form in (ChatFormat(),)}
"""By route."""
