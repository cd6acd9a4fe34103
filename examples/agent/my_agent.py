import json
import re
import sys
from pathlib import Path

from openai import OpenAI

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the corpus for documents.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def search(query: str) -> str:
    pages = [json.loads(line) for line in Path("corpus.jsonl").read_text("utf-8").splitlines()]
    pages.sort(key=lambda page: -len(words(query) & words(page["title"] + " " + page["text"])))
    return "\n".join(f"[{page['id']}] {page['title']}\n{page['text']}" for page in pages[:3])


def solve(question: str) -> str:
    client = OpenAI()  # takes OPENAI_BASE_URL and OPENAI_API_KEY from the environment
    messages = [
        {"role": "system", "content": "Answer with the tool you have, between <answer> and </answer>."},
        {"role": "user", "content": question},
    ]
    for _ in range(12):
        reply = client.chat.completions.create(model="sim-agent", messages=messages, tools=[SEARCH])
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return (message.content or "").rpartition("<answer>")[2].partition("</answer>")[0]
        for call in message.tool_calls:
            try:
                found = search(json.loads(call.function.arguments)["query"])
            except (KeyError, TypeError, ValueError) as problem:
                found = f"Error: {problem}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return ""


if __name__ == "__main__":
    print(solve(sys.stdin.read()))
