"""An agent of the standard library alone: asks chat completions for what to do, and searches a corpus.

With STAMP its tool says the time and the number of its process as well; with QUERY=text it takes one text. With SEEN, a
file, it says so if an agent was at its end before.
"""

import json
import os
import re
import sys
import time
import urllib.request

URL = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
TEXT = {"type": "string"}
QUERY = TEXT if os.environ.get("QUERY") == "text" else {"type": "array", "items": TEXT}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the corpus.",
            "parameters": {"type": "object", "properties": {"query": QUERY}, "required": ["query"]},
        },
    }
]


def ask(messages):
    body = json.dumps({"model": "any", "messages": messages, "tools": TOOLS}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urllib.request.urlopen(urllib.request.Request(URL, body, headers)) as response:
        return json.load(response)["choices"][0]["message"]


def search(query):
    query = [query] if isinstance(query, str) else query
    found = []
    with open(os.environ["CORPUS"], encoding="utf-8") as corpus:
        for line in corpus:
            page = json.loads(line)
            words = set(re.findall(r"\w+", (page["title"] + " " + page["text"]).lower()))
            score = max((len(words & set(re.findall(r"\w+", str(one).lower()))) for one in query), default=0)
            found.append((-score, page["id"], f"[{page['id']}] {page['title']}\n{page['text']}"))
    return "\n".join(text for _, _, text in sorted(found)[:3])


AGAIN = "SEEN" in os.environ and os.path.exists(os.environ["SEEN"])
messages = [
    {"role": "system", "content": "Answer with the tools you have, between <answer> and </answer>."},
    {"role": "user", "content": sys.stdin.read()},
]
for _ in range(12):
    message = ask(messages)
    messages.append(message)
    if not message.get("tool_calls"):
        print((message["content"] or "").rpartition("<answer>")[2].partition("</answer>")[0])
        break
    for call in message["tool_calls"]:
        try:
            seen = search(json.loads(call["function"]["arguments"])["query"])
        except Exception as problem:
            seen = f"Error: {type(problem).__name__}"
        if os.environ.get("STAMP"):
            seen += f"\n(at {time.time()} by {os.getpid()})"
        if AGAIN:
            seen += "\n(again)"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": seen})
if "SEEN" in os.environ:
    open(os.environ["SEEN"], "w", encoding="utf-8").close()
