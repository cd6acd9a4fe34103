"""A search over the pages of a JSONL file that CORPUS names, which every agent here has as its tool."""

import json
import os
import re
from pathlib import Path


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def look(query: list[str]) -> str:
    found = []
    for line in Path(os.environ["CORPUS"]).read_text("utf-8").splitlines():
        page = json.loads(line)
        score = max((len(words(str(one)) & words(page["title"] + " " + page["text"])) for one in query), default=0)
        found.append((-score, page["id"], f"[{page['id']}] {page['title']}\n{page['text']}"))
    return "\n".join(text for _, _, text in sorted(found)[:3])
