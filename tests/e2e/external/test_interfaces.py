"""An agent's trees are the same, whichever interface it asks by."""

from __future__ import annotations

import itertools
import json

import aiohttp
import pytest
from external_agents import TOOLS, Walker, walker

import trunkline as tl
from trunkline.llm.types import Reply, ReplyChoice

TASKS = [tl.Task.ask(f"Walk {number}.", id=f"q{number}") for number in range(3)]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


def seen(arguments):
    place = arguments["place"]
    return f"There is {place * place}"


def bare(text):
    return text.removeprefix("<answer>").removesuffix("</answer>")


async def by_streamed_chunks(client, task):
    messages = [{"role": "system", "content": "Walk."}, *task.messages]
    while True:
        async with client.chat.completions.stream(model="any", messages=messages, tools=TOOLS) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        messages.append({"role": "assistant", "content": message.content})
        if not message.tool_calls:
            return bare(message.content)
        messages[-1]["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
        for call in message.tool_calls:
            content = seen(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


async def by_responses(client, task, *, known: bool = False, stream: bool = False):
    items, previous = [*task.messages], {}
    while True:
        asked = {"model": "any", "instructions": "Walk.", "input": items, "tools": FLAT} | previous
        if stream:
            async with client.responses.stream(**asked) as events:
                response = await events.get_final_response()
        else:
            response = await client.responses.create(**asked)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return bare(response.output_text)
        made = [
            {"type": "function_call_output", "call_id": call.call_id, "output": seen(json.loads(call.arguments))}
            for call in calls
        ]
        if known:
            items, previous = made, {"previous_response_id": response.id}
        else:
            items = [*items, *(item.model_dump(exclude_none=True, warnings=False) for item in response.output), *made]


async def by_previous_response(client, task):
    return await by_responses(client, task, known=True)


async def by_streamed_events(client, task):
    return await by_responses(client, task, stream=True)


async def by_messages(client, task):
    url = str(client.base_url).rstrip("/") + "/messages"
    tools = [{"input_schema" if name == "parameters" else name: one for name, one in tool.items()} for tool in FLAT]
    tools = [{name: one for name, one in tool.items() if name != "type"} for tool in tools]
    messages = [*task.messages]
    async with aiohttp.ClientSession() as http:
        while True:
            body = {"model": "any", "system": [{"type": "text", "text": "Walk."}], "messages": messages, "tools": tools}
            async with http.post(url, json=body) as response:
                message = await response.json()
            messages.append({"role": "assistant", "content": message["content"]})
            calls = [block for block in message["content"] if block["type"] == "tool_use"]
            if not calls:
                return bare(message["content"][0]["text"])
            results = [
                {"type": "tool_result", "tool_use_id": call["id"], "content": seen(call["input"])} for call in calls
            ]
            messages.append({"role": "user", "content": results})


async def digests(agent):
    strategy = tl.TreeGRPO(trees=1, forks=2, rounds=1)
    program = tl.External(agent=agent, effects="none")
    who = tl.Agent(model="m", max_turns=12)
    run = await tl.arun(who, TASKS, llm=Walker(), program=program, strategy=strategy, seed=3, workers=0)
    summary = run.summary()
    assert summary.terminations == {"answer": summary.rollouts}
    assert summary.agent_calls.replayed > 0
    assert summary.agent_calls.rewritten == 0
    return [tree.digest() for tree in run]


@pytest.mark.parametrize(
    "agent", [by_streamed_chunks, by_responses, by_previous_response, by_streamed_events, by_messages]
)
async def test_the_trees_of_an_agent_are_those_of_chat_completions(agent):
    assert await digests(agent) == await digests(walker)


class Caching:
    """A model of a server with a cache that grows."""

    def __init__(self):
        self.calls = itertools.count(1)

    async def complete(self, request):
        return Reply([ReplyChoice(f"I say {request.seed}.", None, [], "stop")], 99, next(self.calls), 7)


async def test_cached_tokens_are_told_in_each_interface_and_again_from_the_record():
    told, prompt = [], [{"role": "user", "content": "Go."}]
    routes = {
        "chat/completions": ({"messages": prompt}, ("prompt_tokens_details", "cached_tokens")),
        "responses": ({"input": prompt}, ("input_tokens_details", "cached_tokens")),
        "completions": ({"prompt": "Go."}, ("prompt_tokens_details", "cached_tokens")),
        "messages": ({"messages": prompt, "max_tokens": 9}, ("cache_read_input_tokens",)),
    }

    async def agent(client, task):
        own = []
        async with aiohttp.ClientSession() as http:
            for route, (body, names) in routes.items():
                url = str(client.base_url).rstrip("/") + "/" + route
                async with http.post(url, json={"model": "m", **body}) as response:
                    found = (await response.json())["usage"]
                for name in names:
                    found = found[name]
                own.append(found)
                said = [{"role": "user", "content": f"So far {own}."}]
                async with http.post(f"{client.base_url}chat/completions", json={"model": "m", "messages": said}):
                    pass
        told.append(own)
        return "done"

    program, who = tl.External(agent=agent, effects="none"), tl.Agent(model="m", max_turns=12)
    strategy = tl.TreeGRPO(trees=1, forks=6, rounds=1)
    run = await tl.arun(who, TASKS[:1], llm=Caching(), program=program, strategy=strategy, workers=0)
    calls = run.summary().agent_calls
    assert calls.replayed > calls.diverged == 0
    assert sorted(told[0]) == told[0] == [1, 3, 5, 7]
    assert all(own[: len(same)] == same for own in told for same in [[one for one in own if one in told[0]]])
