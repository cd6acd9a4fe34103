"""The tools ``search`` and ``visit`` over the ``corpus.jsonl`` that ``$TRUNKLINE_SIM_CORPUS`` names.

``search`` returns numbered hits, best first, or ``No documents found.``::

    1. [d0042] Ada Venn
       Ada Venn works for Venn Institute. … Port Arlen is the birthplace of Ada Venn.

``visit`` returns the documents, separated by an empty line, each headed by its id and title, or for an unknown id
``[d9999] does not exist. Use an id that search returned.``
"""

from __future__ import annotations

import os
import re
from typing import Final

from trunkline.errors import InputError, ToolError
from trunkline.sim.world.search import Index, open_index
from trunkline.tools.tool import tool

__all__ = ["CORPUS_VARIABLE", "search", "visit"]

CORPUS_VARIABLE: Final = "TRUNKLINE_SIM_CORPUS"

_HITS_PER_QUERY: Final = 5
_MOST_HITS: Final = 12
_MOST_PAGES: Final = 8
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


@tool
async def search(query: list[str]) -> str:
    """Search the corpus for documents.

    Args:
        query: Search queries, most important first; each is a few words, such as a name and what is wanted.
    """
    hits = _index().search(query, min(_HITS_PER_QUERY * len(query), _MOST_HITS))
    if not hits:
        return "No documents found."
    return "\n".join(f"{i}. [{hit.id}] {hit.title}\n   {hit.snippet}" for i, hit in enumerate(hits, 1))


@tool
async def visit(id: list[str], goal: str) -> str:
    """Read whole documents.

    Args:
        id: Ids of documents, as search returned them in square brackets.
        goal: What to find out from them.
    """
    index = _index()
    wanted = list(dict.fromkeys(one.strip().strip("[]") for one in id))
    pages = [_page(index, one) for one in wanted[:_MOST_PAGES]]
    if len(wanted) > _MOST_PAGES:
        pages.append(f"Only the first {_MOST_PAGES} documents are shown. Visit the others in another call.")
    return "\n\n".join(pages) if pages else "No id was given. Use ids that search returned."


def _page(index: Index, id: str) -> str:
    page = index.get(id)
    if page is not None:
        return f"[{page.id}] {page.title}\n{page.text}"
    # The id is model output: it is repeated only where it could be an id.
    shown = f"[{id}]" if _ID.fullmatch(id) else "This id"
    return f"{shown} does not exist. Use an id that search returned."


def _index() -> Index:
    path = os.environ.get(CORPUS_VARIABLE, "")
    if not path:
        raise ToolError(f"{CORPUS_VARIABLE} is not set; it must name a corpus.jsonl (trunkline sim world writes one)")
    try:
        return open_index(path)
    except InputError as error:
        raise ToolError(f"the corpus that {CORPUS_VARIABLE} names cannot be used: {error}") from error
