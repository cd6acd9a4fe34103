"""Agents of other frameworks: their calls become turns, are replayed for forks, and end with their limits."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import re
import tracemalloc
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest
from external_agents import TOOLS, Walker, late_walker, walk, walker
from foreign import message, serving

import trunkline as tl
from trunkline.errors import ConfigError
from trunkline.gateway import server
from trunkline.gateway.canonical import forms
from trunkline.llm.types import Reply, ReplyChoice
from trunkline.rollout.external import driver, resources, session
from trunkline.runner.broken import judge
from trunkline.strategies.mcts import MCTS
from trunkline.tree.records import Failure

TASKS = [tl.Task.ask(f"Walk {number}.", id=f"q{number}") for number in range(4)]
PATIENT = tl.Agent(model="m", max_turns=100)
SAID = "/v1/chat/completions"


async def play(agent, llm=None, tasks=TASKS, *, out=None, effects="none", masks=(), model=None, **options):
    program = tl.External(agent=agent, effects=effects, masks=masks)
    who = model or tl.Agent(model="m", max_turns=12)
    given = {"strategy": tl.Chain(2), "seed": 3, "workers": 0} | options
    return await tl.arun(who, tasks, llm=Walker() if llm is None else llm, program=program, out=out, **given)


def parity(trajectory):
    return float(int(trajectory.answer or 0) % 2)


def digests(run):
    return [tree.digest() for tree in run]


@pytest.mark.parametrize(
    "strategy",
    [tl.Chain(3), tl.TreeGRPO(trees=2, forks=2, rounds=2), MCTS(simulations=10, children=2)],
    ids=lambda one: type(one).__name__,
)
async def test_trees_hold_what_the_agent_asked(strategy, tmp_path):
    model = Walker()
    run = await play(walker, model, TASKS[:2], strategy=strategy, out=tmp_path / "run", reward=parity)
    summary = run.summary()
    assert summary.terminations == {"answer": summary.rollouts}
    assert summary.usage.calls == len(model.bodies), "a replayed call costs nothing"
    sent = {b"".join(forms(body["messages"])) for body in model.bodies}
    held = set()
    for tree in run:
        for number in range(tree.core.rollouts):
            for node in tree.core.path(tree.core.rollout(number).leaf):
                facts = tree.core.node(node)
                if facts.context is not None:
                    held.add(b"".join(forms(json.loads(tree.core.request_context(facts.context, b"[", b"]")))))
                elif facts.finish:
                    held.add(b"".join(forms(json.loads(tree.core.messages(facts.parent)))))
    assert held == sent
    for body in model.bodies:
        ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
        assert ids == [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
        assert body["tools"] == TOOLS
    with tl.RunReader.open(tmp_path / "run") as reader:
        assert reader.check() == []
    if not isinstance(strategy, tl.Chain):
        assert summary.agent_calls.replayed > 0
        assert summary.agent_calls.diverged == summary.agent_calls.masked == 0
    assert digests(await play(walker, tasks=TASKS[:2], strategy=strategy, reward=parity)) == digests(run)


@pytest.mark.breaks_rollouts
async def test_an_agent_that_asks_something_else_diverges_unless_a_mask_covers_it():
    strategy = tl.TreeGRPO(trees=2, forks=2, rounds=1)
    run = await play(late_walker, strategy=strategy)
    summary = run.summary()
    forks = summary.agent_calls.again  # those at the prompt replay nothing
    assert summary.terminations == {"answer": len(TASKS) * 6 - forks, "lost": forks}
    assert summary.agent_calls.diverged == forks > 0
    assert judge(summary, 1.0) == 1, "the groups are selected"
    errors = [tree.core.rollout(rollout.id).error for tree in run for rollout in tree.rollouts]
    failures = [Failure.decode(error) for error in errors if error]
    assert {failure.kind for failure in failures} == {"ReplayDiverged"}
    assert all(len(re.findall(r"It is \d+", failure.message)) == 2 for failure in failures), "both are shown"
    masked = (await play(late_walker, strategy=strategy, masks=[r"It is \d+"])).summary()
    assert masked.terminations == {"answer": len(TASKS) * 6}
    assert masked.agent_calls.masked == masked.agent_calls.replayed > 0
    assert masked.agent_calls.diverged == 0


async def test_siblings_condition_on_the_recorded_prefix_whatever_a_mask_covers():
    model = Walker()
    await play(late_walker, model, tasks=TASKS[:1], strategy=tl.TreeGRPO(trees=1, forks=3, rounds=1), masks=[r"\d+"])
    openings = {body["messages"][0]["content"] for body in model.bodies}
    assert len(openings) == 1


async def test_forks_need_effects_that_may_be_repeated():
    with pytest.raises(ConfigError, match="--effects"):
        await play(walker, effects="external", strategy=tl.TreeGRPO(trees=1, forks=1, rounds=1))
    assert (await play(walker, effects="external")).summary().terminations == {"answer": 8}


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"system": "Be good."}, "system prompt"),
        ({"dialect": "hermes"}, "dialect"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
    ],
)
async def test_what_the_agent_brings_itself_is_refused(agent, message):
    with pytest.raises(ConfigError, match=message):
        await play(walker, model=tl.Agent(model="m", **agent))


@pytest.mark.parametrize("agent", [3, lambda client, task: None, "", "a 'b"])
def test_no_agent(agent):
    with pytest.raises(ConfigError, match="agent"):
        _ = tl.External(agent=agent).command


async def test_the_limit_of_turns_is_told_and_ends_the_rollout():
    told = []

    async def agent(client, task):
        try:
            await walk(client, task)
        except Exception as error:
            told.append(error)
            raise
        return "unheard"

    run = await play(agent, model=tl.Agent(model="m", max_turns=2))
    assert run.summary().terminations == {"max_turns": 8}
    assert {type(error).__name__ for error in told} == {"RateLimitError"}
    assert all("a retry is useless" in str(error) for error in told)
    assert all(error.response.headers["x-should-retry"] == "false" for error in told)


async def test_an_agent_that_ignores_its_limit_is_ended(monkeypatch):
    monkeypatch.setattr(driver, "_GRACE", 0.05)

    async def agent(client, task):
        while True:
            try:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "again"}])
            except openai.RateLimitError:
                await asyncio.sleep(0.01)

    run = await play(agent, model=tl.Agent(model="m", max_turns=3))
    assert run.summary().terminations == {"max_turns": 8}


async def test_what_an_agent_answers_after_its_limit_is_kept():
    async def agent(client, task):
        try:
            return await walk(client, task)
        except openai.RateLimitError:
            return "as far as I came"

    run = await play(agent, model=tl.Agent(model="m", max_turns=2))
    assert run.summary().terminations == {"max_turns": 8}
    assert {rollout.answer for tree in run for rollout in tree.rollouts} == {"as far as I came"}


@pytest.mark.breaks_rollouts
async def test_a_model_that_fails_is_told_and_ends_the_rollout():
    class Broken(Walker):
        async def complete(self, request):
            raise ValueError("out of order")

    told = []

    async def agent(client, task):
        try:
            return await walk(client.with_options(max_retries=0), task)
        except Exception as error:
            told.append(error)
            raise

    run = await play(agent, Broken(), tasks=TASKS[:1])
    assert run.summary().terminations == {"llm_error": 2}
    assert {error.status_code for error in told} == {500}


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("answer", [3, b"x", ["a"]])
async def test_an_answer_that_is_no_text(answer):
    async def agent(client, task):
        return answer

    run = await play(agent, tasks=TASKS[:1])
    assert run.summary().terminations == {"lost": 2}
    assert "must return its answer" in run.summary().failures[0][0]


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize("nested", [False, True], ids=["itself", "in a task of its own"])
@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), asyncio.CancelledError()])
async def test_whatever_an_agent_raises_ends_its_rollout_alone(error, nested):
    async def fail():
        await asyncio.sleep(0)
        raise error

    async def agent(client, task):
        if task.id == "q1":
            await (asyncio.create_task(fail()) if nested else fail())
        return await walk(client, task)

    run = await play(agent)
    assert run.summary().terminations == {"answer": 6, "lost": 2}


async def post(client, body, **headers):
    url = str(client.base_url).rstrip("/") + "/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as response:
        return response.status, await response.json()


def asking(text="hello", **fields):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


class Counting:
    """A model that counts its calls, and answers with its seed; ``gate`` holds it until it is set."""

    def __init__(self) -> None:
        self.calls = 0
        self.seeds = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def complete(self, request):
        self.calls += 1
        self.seeds.append(request.seed)
        await self.gate.wait()
        return Reply([ReplyChoice(str(request.seed), None, [], "stop")], 5, 0, 1)


async def test_equal_requests_are_draws_of_their_own_unless_they_are_retries():
    model, said = Counting(), []

    async def agent(client, task):
        said.append([(await post(client, asking()))[1]["choices"][0]["message"]["content"] for _ in range(3)])
        for header in ({"X-Stainless-Retry-Count": "1"}, {"Idempotency-Key": "k"}, {"Idempotency-Key": "k"}):
            said[-1].append((await post(client, asking(), **header))[1]["choices"][0]["message"]["content"])
        return "done"

    await play(agent, model, tasks=TASKS[:1], strategy=tl.Chain(1))
    ((first, second, third, repeated, keyed, again),) = said
    assert len({first, second, third}) == 3
    assert repeated == third
    assert keyed == again not in {first, second, third}
    assert model.calls == 4


async def test_a_request_whose_client_hung_up_is_joined_by_the_next():
    model = Counting()

    async def agent(client, task):
        model.gate.clear()
        lost = asyncio.ensure_future(post(client, asking()))
        while not model.calls:
            await asyncio.sleep(0.001)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        await asyncio.sleep(0.05)
        again = asyncio.ensure_future(post(client, asking()))
        await asyncio.sleep(0.05)
        model.gate.set()
        return (await again)[1]["choices"][0]["message"]["content"]

    run = await play(agent, model, tasks=TASKS[:1], strategy=tl.Chain(1))
    assert model.calls == 1
    assert run.summary().terminations == {"answer": 1}


async def test_a_retry_joins_the_request_that_was_given_up_not_an_equal_one():
    model, said = Counting(), []

    async def agent(client, task):
        model.gate.clear()
        lost, other = (asyncio.ensure_future(post(client, asking())) for _ in range(2))
        while model.calls < 2:
            await asyncio.sleep(0.001)
        lost.cancel()
        await asyncio.gather(lost, return_exceptions=True)
        await asyncio.sleep(0.05)
        again = asyncio.ensure_future(post(client, asking(), **{"X-Stainless-Retry-Count": "1"}))
        await asyncio.sleep(0.05)
        model.gate.set()
        said.extend(body["choices"][0]["message"]["content"] for _, body in await asyncio.gather(other, again))
        return "done"

    await play(agent, model, tasks=TASKS[:1], strategy=tl.Chain(1))
    assert model.calls == len(set(said)) == 2


@pytest.mark.parametrize("first", [asking("Walk 0."), asking("a")], ids=["on the path", "beside it"])
async def test_calls_at_the_same_time_have_one_tree_whichever_comes_first_and_are_no_fork_points(first):
    others = [asking("b"), {"model": "m", "messages": [{"role": "system", "content": "S"}, *asking("c")["messages"]]}]

    def agent_asking(bodies):
        async def agent(client, task):
            conversations = [body["messages"] for body in bodies]
            for _ in range(2):
                model.gate.clear()
                before, asked = model.calls, []
                for messages in conversations:
                    asked.append(asyncio.ensure_future(post(client, {"model": "m", "messages": messages})))
                    while model.calls < before + len(asked):
                        await asyncio.sleep(0.001)
                model.gate.set()
                replies = [body["choices"][0]["message"] for _, body in await asyncio.gather(*asked)]
                more = {"role": "user", "content": "more"}
                conversations = [[*one, reply, more] for one, reply in zip(conversations, replies, strict=True)]
            return "done"

        return agent

    trees = set()
    for bodies in itertools.permutations([first, *others]):
        model = Counting()
        run = await play(agent_asking(bodies), model, tasks=TASKS[:1], strategy=tl.Chain(1))
        assert run.summary().terminations == {"answer": 1}, run.summary().failures
        assert run.summary().agent_calls.beside == 6
        trees.update(digests(run))
    assert len(trees) == 1


async def test_several_choices_are_several_draws():
    model, said = Counting(), []

    async def agent(client, task):
        said.append((await post(client, asking(n=3)))[1])
        return "done"

    run = await play(agent, model, tasks=TASKS[:1], strategy=tl.Chain(1))
    texts = [choice["message"]["content"] for choice in said[0]["choices"]]
    assert sorted(texts) == sorted(map(str, model.seeds))
    assert len(set(texts)) == run.summary().usage.calls == 3


async def test_parameters_of_the_run_replace_those_of_the_agent_and_the_seed_is_the_runs():
    bodies = []

    class Noting(Counting):
        async def complete(self, request):
            bodies.append(json.loads(request.body))
            return await super().complete(request)

    async def agent(client, task):
        fields = {"temperature": 0.3, "top_p": 0.5, "max_tokens": 9, "seed": 1, "tool_choice": "auto", "tools": TOOLS}
        await post(client, asking(**fields))
        return "done"

    sampling = tl.Sampling(temperature=0.9)
    await play(agent, Noting(), tasks=TASKS[:1], strategy=tl.Chain(1), model=tl.Agent(model="run", sampling=sampling))
    (body,) = bodies
    assert body["seed"] != 1
    wanted = {"model": "run", "temperature": 0.9, "top_p": 0.5, "max_tokens": 9, "tool_choice": "auto", "tools": TOOLS}
    assert {name: body[name] for name in wanted} == wanted


async def test_temperature_0_with_several_rollouts_warns_once(caplog):
    async def agent(client, task):
        await post(client, asking(temperature=0))
        return "done"

    with caplog.at_level(logging.WARNING, "trunkline"):
        await play(agent, Counting(), strategy=tl.Chain(2))
    assert sum("temperature 0" in record.message for record in caplog.records) == 1


BAD = [
    (b"", 400),
    (b"[]", 400),
    (b"nan", 400),
    (b'{"messages":' + b"[" * 100_000, 400),
    (json.dumps(asking(logprobs=True)).encode(), 400),
    (json.dumps(asking(n=10**6)).encode(), 400),
    (json.dumps(asking(temperature=-1)).encode(), 400),
    (json.dumps(asking(unknown_field=1)).encode(), 400),
    (json.dumps({"messages": []}).encode(), 400),
    (json.dumps({"messages": [{"role": "king", "content": "x"}]}).encode(), 400),
    (json.dumps({"messages": [{"role": "tool", "content": "x"}]}).encode(), 400),
    (json.dumps(asking(tools=[{"type": "web_search"}])).encode(), 400),
]


async def test_hostile_requests_are_refused_in_the_providers_words_and_counted():
    async def agent(client, task):
        base = str(client.base_url).rstrip("/")
        async with aiohttp.ClientSession() as http:
            for body, status in BAD:
                async with http.post(f"{base}/chat/completions", data=body) as response:
                    assert response.status == status, body[:80]
                    assert set((await response.json())["error"]) == {"message", "type", "param", "code"}
                    assert response.headers["X-Should-Retry"] == "false"
            for method, path in (("POST", "/embeddings"), ("GET", "/chat/completions"), ("DELETE", "/files/x")):
                async with http.request(method, base + path) as response:
                    assert response.status == 404
                    assert "not offered" in (await response.json())["error"]["message"]
            async with http.get(f"{base}/models") as response:
                assert (await response.json())["data"]
            other = re.sub(r"/[^/]+/v1$", "/guessed/v1", base)
            async with http.post(f"{other}/chat/completions", json=asking()) as response:
                assert response.status == 404
        return "done"

    run = await play(agent, tasks=TASKS[:1], strategy=tl.Chain(1))
    summary = run.summary()
    assert summary.terminations == {"answer": 1}, summary.failures
    assert summary.agent_calls.refused == len(BAD) + 3
    assert summary.usage.calls == 0


NO_HTTP = [
    b"\x1b[31mGARBAGE\x00\xff\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\n\r\n",
    b"POST PATH HTTP/1.1\r\nContent-Type: \x1b[31m\r\nContent-Length: 2\r\n\r\n{}",
    b"POST PATH HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    b"POST PATH HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"GET PATH/\xff HTTP/1.1\r\n\r\n",
]


async def test_what_is_no_http_is_answered_and_not_logged(caplog):
    async def agent(client, task):
        url = urlsplit(str(client.base_url))
        for sent in NO_HTTP:
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(sent.replace(b"PATH", f"{url.path}chat/completions".encode()))
            assert (await reader.readline())[9:13] in (b"400 ", b"404 "), sent
            writer.close()
        return "done"

    with caplog.at_level(logging.DEBUG):
        run = await play(agent, tasks=TASKS[:1], strategy=tl.Chain(1))
    assert run.summary().terminations == {"answer": 1}, run.summary().failures
    assert not [record for record in caplog.records if record.exc_info or "aiohttp" in record.name]


@pytest.mark.breaks_rollouts
async def test_the_base_url_stands_in_no_run_file_log_or_error(tmp_path, caplog):
    secrets = []

    async def agent(client, task):
        url = str(client.base_url)
        secrets.append(url.split("/")[3])
        await post(client, asking(f"I am served at {url}"))
        if task.id == "q1":
            raise ValueError(f"no answer from {url}")
        return url

    run = await play(agent, Counting(), tasks=TASKS[:2], strategy=tl.Chain(1), out=tmp_path / "run")
    assert run.summary().terminations == {"answer": 1, "lost": 1}
    kept = b"".join(path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file())
    said = repr(run.summary()) + caplog.text
    said += "".join(str(rollout.answer or rollout.error) for tree in run for rollout in tree.rollouts)
    assert len(secrets) == 2
    assert not [secret for secret in secrets if secret in said or secret.encode() in kept]


async def test_what_is_asked_after_a_limit_does_not_reach_the_tree(monkeypatch):
    monkeypatch.setattr(driver, "_GRACE", 0.2)

    async def agent(client, task):
        for number in range(20):
            await post(client, asking(f"question {number}"))
        return "done"

    run = await play(agent, Counting(), tasks=TASKS[:1], strategy=tl.Chain(1), model=tl.Agent(model="m", max_turns=3))
    (tree,) = run
    assert run.summary().terminations == {"max_turns": 1}
    assert (
        tree.core.fragment(b'{"role":"user","content":"question 4"}')
        == tree.core.fragment(b'{"role":"user","content":"new"}') - 1
    )


async def test_a_stream_says_what_a_whole_reply_says():
    async def agent(client, task):
        messages = [{"role": "user", "content": "Walk."}]
        whole = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        async with client.chat.completions.stream(
            model="m", messages=messages, tools=TOOLS, stream_options={"include_usage": True}
        ) as stream:
            chunks = [event.type async for event in stream]
            streamed = await stream.get_final_completion()
        assert chunks
        assert streamed.usage == whole.usage
        assert streamed.choices[0].message.tool_calls[0].function.name == "look"
        assert whole.choices[0].finish_reason == streamed.choices[0].finish_reason == "tool_calls"
        return "done"

    run = await play(agent, tasks=TASKS[:1], strategy=tl.Chain(1))
    assert run.summary().terminations == {"answer": 1}, run.summary().failures


async def test_a_previous_response_is_expanded_from_the_rollout():
    model = Walker(turns=1)

    async def agent(client, task):
        tools = [{"type": "function", "strict": False, **TOOLS[0]["function"]}]
        first = await client.responses.create(model="m", instructions="Walk.", input="Go.", tools=tools)
        (call,) = [item for item in first.output if item.type == "function_call"]
        seen = {"type": "function_call_output", "call_id": call.call_id, "output": "There is 9"}
        second = await client.responses.create(
            model="m", instructions="Walk on.", input=[seen], previous_response_id=first.id, tools=tools
        )
        with pytest.raises(openai.APIStatusError, match="not found"):
            await client.responses.create(model="m", input="x", previous_response_id="resp_unknown")
        return second.output_text

    run = await play(agent, model, tasks=TASKS[:1], strategy=tl.Chain(1))
    assert run.summary().terminations == {"answer": 1}, run.summary().failures
    first, second = (body["messages"] for body in model.bodies)
    assert [one["role"] for one in first] == ["system", "user"]
    assert [one["role"] for one in second] == ["system", "user", "assistant", "tool"]
    assert second[0]["content"] == "Walk on."
    assert second[2]["tool_calls"][0]["id"] == second[3]["tool_call_id"]


async def test_anthropics_messages_are_an_interface_too():
    model = Walker(turns=1)

    async def agent(client, task):
        url = str(client.base_url).rstrip("/").removesuffix("/v1") + "/v1/messages"
        tool = {"name": "look", "input_schema": TOOLS[0]["function"]["parameters"]}
        messages = [{"role": "user", "content": "Go."}]
        async with aiohttp.ClientSession() as http:
            for _ in range(2):
                body = {"model": "m", "max_tokens": 99, "system": "Walk.", "messages": messages, "tools": [tool]}
                async with http.post(url, json=body) as response:
                    said = await response.json()
                messages.append({"role": "assistant", "content": said["content"]})
                calls = [block for block in said["content"] if block["type"] == "tool_use"]
                results = [
                    {"type": "tool_result", "tool_use_id": call["id"], "content": "There is 9"} for call in calls
                ]
                messages.append({"role": "user", "content": results})
        return said["content"][0]["text"]

    run = await play(agent, model, tasks=TASKS[:1], strategy=tl.Chain(1))
    assert run.summary().terminations == {"answer": 1}, run.summary().failures
    assert [one["role"] for one in model.bodies[1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert run.summary().agent_calls is None, "nothing was rewritten"


async def test_connections_that_an_agent_leaves_open_take_none_from_others(monkeypatch):
    monkeypatch.setattr(server, "_NEW", 20)
    flooded, answered = asyncio.Event(), asyncio.Event()

    async def agent(client, task):
        if task.id == "q1":
            await flooded.wait()
            status, _ = await post(client, asking())
            answered.set()
            return str(status)
        url, held = urlsplit(str(client.base_url)), []
        head = f"POST {url.path}chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n".encode()
        for number in range(100):
            held.append(await asyncio.open_connection(url.hostname, url.port))
            if number % 2:
                held[-1][1].write(head)  # its body does not come
            await asyncio.sleep(0)
        closed = [asyncio.ensure_future(reader.read()) for reader, _ in held]
        while sum(not one.done() for one in closed) > 20:  # whether part of a request came or not
            await asyncio.sleep(0.01)
        flooded.set()
        await answered.wait()
        for one in closed:
            one.cancel()
        for _, writer in held:
            writer.close()
        return "done"

    run = await play(agent, Counting(), tasks=TASKS[:2], strategy=tl.Chain(1))
    assert {rollout.answer for tree in run for rollout in tree.rollouts} == {"200", "done"}, run.summary().failures


async def test_a_body_of_too_many_values_is_refused_before_it_is_read():
    told = []

    async def agent(client, task):
        url = str(client.base_url).rstrip("/") + "/chat/completions"
        body = b'{"tools":[' + b",".join([b"{}"] * 1_500_000) + b"]}"
        async with aiohttp.ClientSession() as http, http.post(url, data=io.BytesIO(body)) as response:
            told.append((response.status, (await response.json())["error"]["message"]))
        return "done"

    run = await play(agent, tasks=TASKS[:1], strategy=tl.Chain(1))
    assert run.summary().agent_calls.refused == 1
    assert told == [(413, "the body has more than 1,000,000 values: shorten it")]


async def test_bodies_that_may_be_large_are_read_one_by_one_and_those_that_do_not_come_hold_up_no_other(monkeypatch):
    began, answered, told = asyncio.Event(), asyncio.Event(), []

    async def agent(client, task):
        url = urlsplit(str(client.base_url))
        if task.id == "q1":
            await began.wait()
            large = io.BytesIO(json.dumps(asking("x" * (5 << 20))).encode())
            async with aiohttp.ClientSession() as http, http.post(url.geturl() + "chat/completions", data=large) as got:
                answered.set()
                return str(got.status)
        head = f"POST {url.path}chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{{"
        held = [await asyncio.open_connection(url.hostname, url.port) for _ in range(2)]
        for _, writer in held:
            writer.write(head.encode())
        began.set()
        await answered.wait()
        monkeypatch.setattr(server, "_SENT_WITHIN", 0.05)
        held[0][1].close()
        told.append((await held[1][0].readline()).split()[1])
        held[1][1].close()
        return "done"

    run = await play(agent, Counting(), tasks=TASKS[:2], strategy=tl.Chain(1))
    assert told == [b"408"]
    assert {rollout.answer for tree in run for rollout in tree.rollouts} == {"200", "done"}, run.summary().failures


async def test_more_calls_at_once_than_a_worker_may_have_in_flight():
    async def agent(client, task):
        await asyncio.gather(*(post(client, asking(f"part {number}")) for number in range(80)))
        return "done"

    with serving(lambda _: message("yes")) as model:
        run = await play(agent, tl.LLM(model.url, max_concurrency=2), strategy=tl.Chain(1), model=PATIENT)
    assert run.summary().terminations == {"answer": len(TASKS)}
    assert len(model.bodies) == 80 * len(TASKS)


async def test_a_rollout_keeps_each_message_of_its_agent_once():
    held = []

    async def agent(client, task):
        messages = asking("x")["messages"]
        for number in range(60):
            _, body = await post(client, asking(messages=messages))
            messages += [body["choices"][0]["message"], {"role": "user", "content": f"{number}" + "y" * 10_000}]
            if number in (20, 59):
                held.append(tracemalloc.get_traced_memory()[0])
        return "done"

    tracemalloc.start()
    try:
        run = await play(
            agent, Counting(), tasks=TASKS[:1], strategy=tl.Chain(1), model=tl.Agent(model="m", max_turns=99)
        )
    finally:
        tracemalloc.stop()
    assert run.summary().terminations == {"answer": 1}, run.summary().failures
    assert held[1] - held[0] < 3e6, "each request is kept whole"


async def test_tools_and_parameters_of_one_agent_take_none_from_others(monkeypatch):
    monkeypatch.setattr(session, "_MOST_WAYS", 5)
    monkeypatch.setattr(resources, "_KEPT", 4)
    model = Counting()

    async def agent(client, task):
        asked = [await post(client, asking(temperature=(number + 1) / 100, user=task.id)) for number in range(7)]
        return " ".join(str(status) for status, _ in asked)

    tasks = [tl.Task.ask("x", id=f"q{number}") for number in range(3)]
    run = await play(agent, model, tasks=tasks, strategy=tl.Chain(1))
    assert {rollout.answer for tree in run for rollout in tree.rollouts} == {"200 200 200 200 200 400 400"}
    assert run.summary().agent_calls.refused == 6
    assert model.calls == 15
