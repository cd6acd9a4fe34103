"""A small agent loop of the tests' own, in process: it shares nothing with Trunkline's agent."""

from __future__ import annotations

import json
from functools import cache

from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.generation import Sampling
from trunkline.sim.model.registry import Model, reply
from trunkline.sim.world.generator import make_world
from trunkline.sim.world.search import Index

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the corpus for documents.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "array", "items": {"type": "string"}}},
                "required": ["query"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "visit",
            "description": "Read whole documents.",
            "parameters": {
                "type": "object",
                "properties": {
                    "id": {"type": "array", "items": {"type": "string"}},
                    "goal": {"type": "string"},
                },
                "required": ["id", "goal"],
            },
        },
    },
]
READ_TOOLS = chat.tools_from(TOOLS)
SYSTEM = "Work on the question with the tools. Put the final answer between answer tags."


@cache
def world(seed=0):
    return make_world(seed)


@cache
def index(seed=0):
    return Index(world(seed).documents)


def search(found, queries):
    hits = found.search(queries, 5) if found is not None else []
    return "\n".join(f"{i}. [{h.id}] {h.title}\n   {h.snippet}" for i, h in enumerate(hits, 1)) or "Nothing found."


def visit(found, ids):
    pages = [page for page in (found.get(one) for one in ids) if page is not None]
    return "\n\n".join(f"[{page.id}] {page.title}\n{page.text}" for page in pages) or "No such document."


def execute(found, name, arguments):
    try:
        values = json.loads(arguments)
        if name == "search":
            return search(found, values["query"])
        if name == "visit":
            return visit(found, values["id"])
    except (ValueError, KeyError, TypeError) as error:
        return f"The call failed: {error!r}"
    return f"There is no tool {name}."


def right(question, text):
    return text is not None and text in {question.answer, *question.aliases}


def answer_in(content):
    if "<answer>" not in content:
        return None
    return content.rsplit("<answer>", 1)[1].split("</answer>")[0]


def episode(question, found, dials, seed, *, temperature=1.0, most=40, behaviour="sim-agent", keep_thinking=True):
    """Run one try; returns the answer and the messages."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.question}]
    model = Model(behaviour, dials)
    for turn in range(most):
        rendered = chat.render(messages, TOOLS)
        conversation = chat.Conversation(rendered, READ_TOOLS)
        sampling = Sampling(seed * 1000 + turn, temperature)
        raw = reply(model, conversation, sampling, chat.digest(conversation)).text()
        split = chat.parts(raw)
        message = {"role": "assistant", "content": split.content or None}
        if keep_thinking and split.thinking is not None:
            message["reasoning_content"] = split.thinking
        if split.calls:
            message["tool_calls"] = [
                {
                    "id": f"c{turn}_{i}",
                    "type": "function",
                    "function": {"name": c.name, "arguments": c.arguments},
                }
                for i, c in enumerate(split.calls)
            ]
        messages.append(message)
        if not split.calls:
            return answer_in(split.content), messages
        for i, call in enumerate(split.calls):
            result = execute(found, call.name, call.arguments)
            messages.append({"role": "tool", "tool_call_id": f"c{turn}_{i}", "content": result})
    return None, messages
