"""The server over real sockets: the OpenAI form, seeds, limits, log-probs, ids, errors and switches."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager

import aiohttp
import pytest
from sim_model_drive import SYSTEM, TOOLS, execute, index, right, world

from trunkline.errors import ConfigError, EndpointError
from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.tokenizer import default_bpe
from trunkline.sim.server.app import start_server
from trunkline.sim.server.latency import Latency
from trunkline.sim.server.options import Settings

LOOKUPS = [q for q in world().questions if q.kind == "lookup"]
ASK = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": LOOKUPS[0].question}]
END = "<|im_end|>"


class Client:
    def __init__(self, session, server):
        self.session = session
        self.server = server

    async def post(self, path, body, **kwargs):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.server.root_url + path, data=data, **kwargs) as response:
            raw = await response.read()
            return response.status, (json.loads(raw) if raw[:1] in b"{[" else raw.decode()), response.headers

    async def chat(self, messages=ASK, **fields):
        body = {"model": "sim-agent", "messages": messages, "tools": TOOLS, "seed": 3, **fields}
        status, reply, _ = await self.post("/v1/chat/completions", body)
        assert status == 200, reply
        return reply

    async def complete(self, prompt, **fields):
        body = {"model": "sim-agent", "prompt": prompt, "seed": 3, **fields}
        status, reply, _ = await self.post("/v1/completions", body)
        assert status == 200, reply
        return reply

    @property
    def port(self):
        return int(self.server.root_url.rpartition(":")[2])

    async def get(self, path):
        async with self.session.get(self.server.root_url + path) as response:
            return response.status, await response.text()


@asynccontextmanager
async def serving(**settings):
    server = await start_server(Settings(**settings))
    try:
        async with aiohttp.ClientSession() as session:
            yield Client(session, server)
    finally:
        await server.stop()


async def history(client, question, found, turns=40, **fields):
    """Play one question to its end over HTTP."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.question}]
    replies = []
    for turn in range(turns):
        reply = await client.chat(messages, seed=turn, **fields)
        replies.append(reply)
        message = reply["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls", ()):
            text = execute(found, call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if not message.get("tool_calls"):
            break
    return messages, replies


def text_of(ids):
    return default_bpe().decode(ids).decode()


async def test_a_question_is_solved_over_http():
    async with serving(dials={"skill": 1.0}) as client:
        for question in LOOKUPS[:6]:
            messages, replies = await history(client, question, index(), temperature=0)
            answer = messages[-1]["content"].partition("<answer>")[2].partition("</answer>")[0]
            assert right(question, answer)
            assert replies[0]["choices"][0]["finish_reason"] == "tool_calls"
            assert replies[-1]["choices"][0]["finish_reason"] == "stop"
            ids = [call["id"] for m in messages for call in m.get("tool_calls", ())]
            assert len(set(ids)) == len(ids)


async def test_same_seed_and_conversation_give_the_same_bytes_on_any_server():
    async with serving() as one, serving() as two:
        for fields in ({}, {"logprobs": True, "top_logprobs": 5, "return_token_ids": True}):
            first, second = await one.chat(**fields), await two.chat(**fields)
            assert first == second
        assert (await one.chat(seed=4))["choices"] != first["choices"]


async def test_without_a_seed_replies_differ():
    async with serving() as client:
        seen = {json.dumps((await client.chat(seed=None))["choices"][0]["message"]["content"]) for _ in range(12)}
        assert len(seen) > 3


async def test_temperature_zero_ignores_the_seed():
    async with serving() as client:
        texts = {(await client.chat(seed=s, temperature=0))["choices"][0]["message"]["content"] for s in range(6)}
        assert len(texts) == 1


async def test_choices_of_one_request_are_those_of_single_requests():
    async with serving() as client:
        several = await client.chat(n=4, seed=20, logprobs=True, top_logprobs=2, return_token_ids=True)
        for i in range(4):
            alone = await client.chat(seed=20 + i, logprobs=True, top_logprobs=2, return_token_ids=True)
            assert several["choices"][i] == {**alone["choices"][0], "index": i}
        split = [await client.chat(seed=20), await client.chat(seed=21, n=3)]
        rejoined = [choice["message"] for reply in split for choice in reply["choices"]]
        assert rejoined == [choice["message"] for choice in several["choices"]]
        assert several["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in several["choices"])


async def test_stop_and_max_tokens():
    async with serving() as client:
        whole = await client.chat(return_token_ids=True)
        content = whole["choices"][0]["message"]["content"]
        stopped = (await client.chat(stop=["</think>"], return_token_ids=True))["choices"][0]
        assert stopped["finish_reason"] == "stop"
        assert stopped["stop_reason"] == "</think>"
        assert stopped["message"]["content"] == content.partition("</think>")[0]
        assert "tool_calls" not in stopped["message"]
        assert text_of(stopped["token_ids"]).endswith("</think>")
        kept = (await client.chat(stop="</think>", include_stop_str_in_output=True))["choices"][0]
        assert kept["message"]["content"].endswith("</think>")
        for field in ("max_tokens", "max_completion_tokens"):
            short = await client.chat(**{field: 7}, return_token_ids=True)
            choice = short["choices"][0]
            assert choice["finish_reason"] == "length"
            assert choice["token_ids"] == whole["choices"][0]["token_ids"][:7]
            assert short["usage"]["completion_tokens"] == 7
            assert content.startswith(choice["message"]["content"])
        exact = len(whole["choices"][0]["token_ids"])
        assert (await client.chat(max_tokens=exact))["choices"][0]["finish_reason"] == "tool_calls"


async def stream(client, path, body):
    body = {**body, "stream": True}
    async with client.session.post(client.server.root_url + path, data=json.dumps(body)) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.mark.parametrize("reasoning", ["content", "field"])
async def test_a_stream_adds_up_to_the_whole(reasoning):
    fields = {
        "model": "sim-agent",
        "messages": ASK,
        "tools": TOOLS,
        "seed": 3,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "return_token_ids": True,
    }
    async with serving(reasoning=reasoning) as client:
        _, whole, _ = await client.post("/v1/chat/completions", fields)
        chunks = await stream(client, "/v1/chat/completions", {**fields, "stream_options": {"include_usage": True}})
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert {chunk["id"] for chunk in chunks} == {whole["id"]}
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        for expected in whole["choices"]:
            mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == expected["index"]]
            message = {"role": "assistant", "content": "".join(c["delta"].get("content") or "" for c in mine)}
            thinking = "".join(c["delta"].get("reasoning_content") or "" for c in mine)
            if thinking:
                message["reasoning_content"] = thinking
            calls = [call for c in mine for call in c["delta"].get("tool_calls", ())]
            if calls:
                arguments = "".join(call["function"]["arguments"] for call in calls)
                function = {"name": calls[0]["function"]["name"], "arguments": arguments}
                message["tool_calls"] = [{"id": calls[0]["id"], "type": "function", "function": function}]
            wanted = expected["message"]
            assert message == {**wanted, "content": wanted["content"] or ""}
            logprobs = [e for c in mine for e in (c["logprobs"] or {"content": []})["content"]]
            assert logprobs == expected["logprobs"]["content"]
            assert [i for c in mine for i in c.get("token_ids", ())] == expected["token_ids"]
            assert mine[-1]["finish_reason"] == expected["finish_reason"]
            assert all(c["finish_reason"] is None for c in mine[:-1])


async def test_a_completion_stream_adds_up_to_the_whole():
    body = {
        "model": "sim-agent",
        "prompt": LOOKUPS[0].question,
        "seed": 1,
        "logprobs": 2,
        "return_token_ids": True,
    }
    async with serving() as client:
        _, whole, _ = await client.post("/v1/completions", body)
        chunks = [chunk["choices"][0] for chunk in await stream(client, "/v1/completions", body)]
        choice = whole["choices"][0]
        assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
        assert [i for chunk in chunks for i in chunk["token_ids"]] == choice["token_ids"]
        values = [v for chunk in chunks for v in chunk["logprobs"]["token_logprobs"]]
        assert values == choice["logprobs"]["token_logprobs"]


async def test_ids_decode_to_the_text_and_prompts_extend_sampled_ids():
    async with serving() as client:
        _, replies = await history(client, LOOKUPS[2], index(), return_token_ids=True)
        assert len(replies) > 2
        before = None
        for reply in replies:
            choice = reply["choices"][0]
            message = choice["message"]
            calls = "\n".join(
                chat.call_text(chat.Call(c["function"]["name"], c["function"]["arguments"]))
                for c in message.get("tool_calls", ())
            )
            assert text_of(choice["token_ids"]) == (message["content"] or "") + calls + END
            assert len(reply["prompt_token_ids"]) == reply["usage"]["prompt_tokens"]
            if before is not None:
                assert reply["prompt_token_ids"][: len(before)] == before
            before = reply["prompt_token_ids"] + choice["token_ids"]


async def test_a_prompt_of_ids_gives_the_reply_of_its_messages():
    async with serving() as client:
        talk = await client.chat(return_token_ids=True)
        done = await client.complete(talk["prompt_token_ids"], return_token_ids=True)
        assert done["choices"][0]["token_ids"] == talk["choices"][0]["token_ids"]
        assert done["choices"][0]["prompt_token_ids"] == talk["prompt_token_ids"]
        text = default_bpe().decode(talk["prompt_token_ids"]).decode()
        assert (await client.complete(text))["choices"][0]["text"] == done["choices"][0]["text"]
        several = await client.complete([talk["prompt_token_ids"]] * 2, n=2)
        assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
        assert several["choices"][0]["text"] == several["choices"][2]["text"] == done["choices"][0]["text"]


async def test_a_reply_can_be_continued_from_any_token():
    async with serving() as client:
        talk = await client.chat(return_token_ids=True)
        ids = talk["choices"][0]["token_ids"]
        for cut in range(1, len(ids) - 1, 9):
            rest = await client.complete(talk["prompt_token_ids"] + ids[:cut], seed=cut, return_token_ids=True)
            whole = text_of(ids[:cut]) + rest["choices"][0]["text"]
            assert chat.parts(whole).calls or "<answer>" in whole
            assert whole.count("<think>") == 1
        opened = {"role": "assistant", "content": text_of(ids[:9])}
        cont = await client.chat([*ASK, opened], continue_final_message=True)
        assert "<think>" not in cont["choices"][0]["message"]["content"]


async def test_logprobs_are_finite_ordered_and_aligned():
    async with serving() as client:
        choice = (await client.chat(logprobs=True, top_logprobs=16, return_token_ids=True))["choices"][0]
        entries = choice["logprobs"]["content"]
        assert [b for e in entries for b in e["bytes"]] == list(default_bpe().decode(choice["token_ids"]))
        for entry in entries:
            values = [top["logprob"] for top in entry["top_logprobs"]]
            assert len(values) == 16
            assert values == sorted(values, reverse=True)
            assert all(math.isfinite(value) and value <= 0 for value in [*values, entry["logprob"]])
            assert sum(map(math.exp, values)) <= 1 + 1e-5
            assert len({tuple(top["bytes"]) for top in entry["top_logprobs"]}) == 16
        assert (await client.chat(logprobs=True))["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
        assert (await client.chat())["choices"][0]["logprobs"] is None


async def test_logprobs_are_the_frequencies_of_a_decisive_choice():
    """Draw the choice of a document often: each option comes as often as its log-prob says."""
    async with serving(dials={"skill": 0.3, "malformed": 0.0, "empty": 0.0, "shared_misbelief": 0.0}) as client:
        for question in LOOKUPS[:30]:
            messages, _ = await history(client, question, index(), turns=1)
            reply = await client.chat(messages, n=128, seed=0, logprobs=True, top_logprobs=20)
            said: dict[str, list[float]] = {}
            for choice in reply["choices"]:
                arguments = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
                entries = choice["logprobs"]["content"]
                start = "".join(e["token"] for e in entries).index('"arguments"')
                place, total = 0, 0.0
                for entry in entries:
                    if place >= start and entry["logprob"] < -0.045:
                        total += entry["logprob"]
                    place += len(entry["token"])
                said.setdefault(arguments["id"][0], []).append(total)
            if len(said) > 2 and max(map(len, said.values())) < 100:
                break
        assert len(said) > 2
        more = await asyncio.gather(*(client.chat(messages, n=128, seed=1000 * i) for i in range(1, 12)))
        picks = [
            json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["id"][0]
            for reply in more
            for choice in reply["choices"]
        ]
        for option, values in said.items():
            assert max(values) - min(values) < 1e-4
            expected = math.exp(values[0])
            error = 4 * math.sqrt(expected * (1 - expected) / len(picks))
            assert picks.count(option) / len(picks) == pytest.approx(expected, abs=error + 0.005)


async def test_usage_and_the_prefix_cache():
    async with serving() as client:
        _, replies = await history(client, LOOKUPS[2], index())
        cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
        prompts = [reply["usage"]["prompt_tokens"] for reply in replies]
        assert cached[0] == 0
        assert all(c % 16 == 0 for c in cached)
        for i in range(1, len(replies)):
            reply = replies[i - 1]["usage"]
            assert cached[i] >= (reply["prompt_tokens"] + reply["completion_tokens"]) // 16 * 16 - 16
            assert cached[i] < prompts[i]
        again = await client.chat(messages=ASK)
        assert again["usage"]["total_tokens"] == again["usage"]["prompt_tokens"] + again["usage"]["completion_tokens"]
    async with serving(cache_tokens=0) as client:
        for _ in range(2):
            assert (await client.chat())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    async with serving(cache_tokens=64) as client:
        await client.chat()
        await client.chat([{"role": "user", "content": LOOKUPS[5].question * 4}], tools=None)
        assert (await client.chat())["usage"]["prompt_tokens_details"]["cached_tokens"] < 64


async def test_tokenize_and_its_inverse():
    async with serving() as client:
        talk = await client.chat(return_token_ids=True)
        status, reply, _ = await client.post("/tokenize", {"model": "sim-agent", "messages": ASK, "tools": TOOLS})
        assert status == 200
        assert reply["tokens"] == talk["prompt_token_ids"]
        assert reply["count"] == len(reply["tokens"])
        assert reply["max_model_len"] == 131072
        _, reply, _ = await client.post("/tokenize", {"prompt": "Ada Venn <|im_end|>"})
        _, back, _ = await client.post("/detokenize", {"tokens": reply["tokens"]})
        assert back == {"prompt": "Ada Venn <|im_end|>"}
        assert (await client.post("/tokenize", {}))[0] == 400
        assert (await client.post("/detokenize", {"tokens": [99999]}))[0] == 400


async def test_models_health_and_metrics():
    async with serving() as client:
        await client.chat(n=2)
        await client.post("/v1/chat/completions", b"{")
        _, text = await client.get("/v1/models")
        rows = {row["id"]: row for row in json.loads(text)["data"]}
        assert rows["sim-agent"]["sim_version"] == "1"
        assert "sim-judge:late-decisive" in rows
        assert (await client.get("/health"))[0] == 200
        _, text = await client.get("/metrics")
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert values['trunkline_sim_requests_total{path="/v1/chat/completions",status="200"}'] == "1"
        assert values["trunkline_sim_errors_total"] == "1"
        assert values["trunkline_sim_choices_total"] == "2"
        assert float(values["trunkline_sim_process_cpu_seconds_total"]) > 0
        assert values["trunkline_sim_requests_in_flight"] == "1"


def body(**changes):
    whole = {"model": "sim-agent", "messages": ASK, **changes}
    return {key: value for key, value in whole.items() if value is not ...}


@pytest.mark.parametrize(
    ("request_body", "status", "param", "code"),
    [
        (b"{nonsense", 400, None, "invalid_json"),
        (b"", 400, None, "invalid_json"),
        (b"\xff\xfe", 400, None, "invalid_json"),
        (b"[]", 400, None, "invalid_value"),
        (body(model="gpt-9"), 404, "model", "model_not_found"),
        (body(model="sim-agent:hard"), 404, "model", "model_not_found"),
        (body(model=...), 400, "model", "invalid_value"),
        (body(messages=...), 400, "messages", "invalid_value"),
        (body(messages=[]), 400, "messages", "invalid_value"),
        (body(messages=[{"role": "king"}]), 400, "messages[0].role", "invalid_value"),
        (body(messages=[{"role": "user"}]), 400, "messages[0].content", "invalid_value"),
        (body(messages=[*ASK, {"role": "user", "content": None}]), 400, "messages[2].content", "invalid_value"),
        (body(messages=[*ASK, {"role": "tool"}]), 400, "messages[2].content", "invalid_value"),
        (body(messages=[*ASK, {"role": "assistant"}]), 400, "messages[2].content", "invalid_value"),
        (body(messages=[{"role": "user", "content": 7}]), 400, "messages[0].content", "invalid_value"),
        (body(temperature=3), 400, "temperature", "invalid_value"),
        (body(n=0), 400, "n", "invalid_value"),
        (body(seed="x"), 400, "seed", "invalid_value"),
        (body(max_tokens=0), 400, "max_tokens", "invalid_value"),
        (body(stop=[""]), 400, "stop", None),
        (body(logprobs=True, top_logprobs=21), 400, "top_logprobs", "invalid_value"),
        (body(top_logprobs=2), 400, "top_logprobs", None),
        (body(tools=[{"type": "function"}]), 400, "tools[0].function.name", "invalid_value"),
        (body(tool_choice="required"), 400, "tool_choice", "invalid_value"),
        (body(tool_choice="perhaps"), 400, "tool_choice", "invalid_value"),
        (body(max_tokens=131072), 400, "messages", "context_length_exceeded"),
    ],
)
async def test_refusals_name_the_field(request_body, status, param, code):
    async with serving() as client:
        got, reply, _ = await client.post("/v1/chat/completions", request_body)
        assert got == status
        assert reply["error"]["param"] == param
        assert reply["error"]["code"] == code
        assert reply["error"]["message"]
        assert reply["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("prompt", [[], [1, "a"], [[]], "", [-1], [10**9], {"a": 1}, [True]])
async def test_bad_prompts_are_refused(prompt):
    async with serving() as client:
        status, reply, _ = await client.post("/v1/completions", {"model": "sim-agent", "prompt": prompt})
        assert status == 400
        assert reply["error"]["param"] == "prompt"


async def test_unknown_paths_name_what_was_asked_and_what_there_is():
    async with serving() as client:
        for path in ("/chat/completions", "/v1/embeddings", "/v1/chat/completions/", "/"):
            status, reply, _ = await client.post(path, {})
            error = reply["error"]
            assert (status, error["code"]) == (404, "not_found")
            assert error["message"].startswith(f"no such path: POST {path}; this server has /v1/chat/completions, ")
            assert "/v1/models" in error["message"]
        _, reply, _ = await client.post("/%1b[31m" + "x" * 900, {})
        assert "\x1b" not in reply["error"]["message"]
        assert len(reply["error"]["message"]) < 500
        _, text = await client.get("/metrics")
        assert 'trunkline_sim_requests_total{path="other",status="404"} 5' in text


async def test_wrong_methods_name_the_right_ones():
    async with serving() as client:
        async with client.session.get(client.server.base_url + "/chat/completions") as response:
            assert response.status == 405
            assert response.headers["Allow"] == "POST"
            error = (await response.json())["error"]
        assert error["code"] == "method_not_allowed"
        assert error["message"] == "wrong method: GET /v1/chat/completions; this path takes POST"


async def test_one_model():
    async with serving() as client:
        _, text = await client.get("/v1/models")
        rows = json.loads(text)["data"]
        for row in rows:
            status, text = await client.get(f"/v1/models/{row['id']}")
            assert status == 200
            assert json.loads(text) == row
        for name in ("gpt-9", "sim-agent:hard", "sim-agent/x", "sim-agent:"):
            status, text = await client.get(f"/v1/models/{name}")
            assert (status, json.loads(text)["error"]["code"]) == (404, "model_not_found")
            assert name in json.loads(text)["error"]["message"]
        _, text = await client.get("/metrics")
        assert 'path="/v1/models/{name}",status="404"} 4' in text


@pytest.mark.parametrize(
    "raw",
    [
        b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nnoise",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_without_a_traceback(raw, caplog):
    async with serving() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + raw)
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
        await writer.wait_closed()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("changes", "preset", "expected"),
    [
        ({}, "default", "sim-1"),
        ({"skill": "0.54", "wrong_options": 4}, "default", "sim-1"),
        ({}, "late-decisive", "sim-1:late-decisive"),
        ({"skill": 0.9}, "default", "sim-1:default+dials-"),
        ({"skill": 0.9}, "null", "sim-1:null+dials-"),
    ],
)
async def test_the_fingerprint_names_the_generative_model(changes, preset, expected):
    seen = []
    for _ in range(2):
        async with serving(preset=preset, dials=changes) as client:
            _, text = await client.get("/v1/models")
            rows = {row["id"]: row["system_fingerprint"] for row in json.loads(text)["data"]}
            assert rows["sim-agent:null"] == "sim-1:null"
            assert rows["sim-agent:default"] == "sim-1"
            for model, named in rows.items():
                if model.startswith("sim-agent"):
                    assert (await client.chat(model=model))["system_fingerprint"] == named
            assert (await client.complete("hello"))["system_fingerprint"] == rows["sim-agent"]
            body = {"model": "sim-agent", "messages": ASK}
            chunks = await stream(client, "/v1/chat/completions", body)
            assert {chunk["system_fingerprint"] for chunk in chunks} == {rows["sim-agent"]}
            seen.append(rows["sim-agent"])
    assert seen[0] == seen[1]
    if expected.endswith("-"):
        digest = seen[0].removeprefix(expected)
        assert len(digest) == 8
        int(digest, 16)
    else:
        assert seen[0] == expected


def test_fingerprints_tell_settings_apart_and_never_change():
    from trunkline.sim.model.choices import fingerprint, with_dials

    turned = [{"skill": 0.9}, {"skill": "0.9"}, {"skill": 0.91}, {"empty": 0.9}, {"wrong_options": 9}]
    names = [fingerprint("default", with_dials("default", changes)) for changes in turned]
    assert names[0] == names[1] == "sim-1:default+dials-f2fea554"
    assert len(set(names)) == 4


async def test_a_reply_that_ends_while_the_server_stops_says_nothing(caplog, monkeypatch):
    """The reply is due just before aiohttp's patience with it ends, and the loop wakes when both are late."""
    server = await start_server(Settings(latency=Latency(overhead=0.5, token=0.0, tail=0.0)))
    loop = asyncio.get_running_loop()
    real, passed = loop.time, [loop.time()]
    monkeypatch.setattr(loop, "time", lambda: passed[0])  # it does not pass by itself
    async with aiohttp.ClientSession() as session:

        async def ask():
            async with session.post(server.base_url + "/chat/completions", data=json.dumps(body())) as response:
                await response.read()

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        while server.app.service.metrics.in_flight < 4:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        passed[0] += 0.45
        stopping = asyncio.create_task(server.stop())
        for _ in range(50):  # until it waits for the replies
            await asyncio.sleep(0)
        passed[0] += 0.3
        late = passed[0] - real()
        monkeypatch.setattr(loop, "time", lambda: real() + late)
        await stopping
        ended = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(end, aiohttp.ClientError) for end in ended)
    assert [record.getMessage() for record in caplog.records if record.name != "asyncio"] == []


async def test_requests_are_refused_while_the_server_stops():
    async with serving() as client:
        await client.server.app.close()
        status, reply, _ = await client.post("/v1/chat/completions", body())
        assert (status, reply["error"]["code"]) == (503, "stopping")


async def test_a_client_that_leaves_in_the_middle_of_a_stream_is_no_error(caplog):
    async with serving(latency=Latency(overhead=0.0, token=0.001, tail=0.0)) as client:
        for _ in range(5):
            body = json.dumps({"model": "sim-agent", "messages": ASK, "stream": True})
            async with client.session.post(client.server.base_url + "/chat/completions", data=body) as response:
                await response.content.readany()
                response.close()
        for _ in range(100):
            if client.server.app.service.metrics.in_flight == 0:
                break
            await asyncio.sleep(0.05)
        _, text = await client.get("/metrics")
        assert 'path="/v1/chat/completions",status="499"} 5' in text
    assert [record.getMessage() for record in caplog.records if record.name != "asyncio"] == []


async def test_a_key_can_be_required():
    async with serving(api_key="s3cret") as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            status, reply, _ = await client.post("/v1/chat/completions", body(), headers=headers)
            assert (status, reply["error"]["code"]) == (401, "invalid_api_key")
            assert "s3cret" not in json.dumps(reply)
        headers = {"Authorization": "Bearer s3cret"}
        assert (await client.post("/v1/chat/completions", body(), headers=headers))[0] == 200
        assert (await client.get("/health"))[0] == 200


async def test_the_context_can_be_small():
    async with serving(max_context=100) as client:
        status, reply, _ = await client.post("/v1/chat/completions", body(tools=TOOLS))
        assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
        reply = await client.chat([{"role": "user", "content": LOOKUPS[0].question}], tools=None, return_token_ids=True)
        assert reply["usage"]["total_tokens"] <= 100


async def test_switches_for_log_probs_reasoning_n_and_seed():
    async with serving(tool_logprobs=False) as client:
        choice = (await client.chat(logprobs=True, return_token_ids=True))["choices"][0]
        shown = "".join(entry["token"] for entry in choice["logprobs"]["content"])
        assert "tool_call" not in shown
        assert "</think>" in shown
        assert len(choice["token_ids"]) > len(choice["logprobs"]["content"])
    async with serving(reasoning="field") as client:
        message = (await client.chat())["choices"][0]["message"]
        assert message["content"] is None
        assert message["reasoning_content"]
    async with serving(reasoning="dropped") as client:
        choice = (await client.chat(logprobs=True, return_token_ids=True))["choices"][0]
        assert "reasoning_content" not in choice["message"]
        assert "think" not in json.dumps(choice)
        assert text_of(choice["token_ids"]).strip().startswith("<tool_call>")
    async with serving(ignore_n=True) as client:
        assert len((await client.chat(n=4))["choices"]) == 1
    async with serving(ignore_seed=True) as client:
        ids = {(await client.chat())["id"] for _ in range(5)}
        assert len(ids) == 5


async def test_history_can_lose_its_thinking():
    async with serving() as keeps, serving(history_thinking="drop") as drops:
        messages, _ = await history(keeps, LOOKUPS[2], index())
        long = (await keeps.chat(messages[:4], return_token_ids=True))["prompt_token_ids"]
        short = (await drops.chat(messages[:4], return_token_ids=True))["prompt_token_ids"]
        assert "<think>" in text_of(long)
        assert "<think>" not in text_of(short)


async def test_noncanonical_segmentation():
    async with serving() as plain, serving(noncanonical=0.3) as other:
        a = (await plain.chat(return_token_ids=True, logprobs=True))["choices"][0]
        b = (await other.chat(return_token_ids=True, logprobs=True))["choices"][0]
        assert a["message"]["content"] == b["message"]["content"]
        assert len(b["token_ids"]) > len(a["token_ids"])
        assert default_bpe().decode(a["token_ids"]) == default_bpe().decode(b["token_ids"])
        assert len(b["logprobs"]["content"]) == len(b["token_ids"])
        again = (await other.chat(return_token_ids=True))["choices"][0]
        assert again["token_ids"] == b["token_ids"]


async def test_tool_choice():
    async with serving() as client:
        for seed in range(5):
            assert "tool_calls" not in (await client.chat(tool_choice="none", seed=seed))["choices"][0]["message"]
            named = {"type": "function", "function": {"name": "visit"}}
            for choice in ("required", named):
                messages = [{"role": "user", "content": "Hello."}]
                message = (await client.chat(messages, tool_choice=choice, seed=seed))["choices"][0]["message"]
                assert len(message["tool_calls"]) == 1
                if choice is named:
                    assert message["tool_calls"][0]["function"]["name"] == "visit"


async def test_failures_are_seeded_and_a_retry_can_succeed():
    async def statuses():
        async with serving(fail_rate=0.5, fail_seed=7) as client:
            out = []
            for seed in range(30):
                status, reply, headers = await client.post("/v1/chat/completions", body(seed=seed))
                out.append(status)
                if status == 429:
                    assert "Retry-After" in headers
                if status != 200:
                    assert reply["error"]["code"] in {"rate_limit_exceeded", "internal_error"}
            retried = [(await client.post("/v1/chat/completions", body(seed=0)))[0] for _ in range(12)]
            assert 200 in retried
            return out

    first = await statuses()
    assert first == await statuses()
    assert {200, 429, 500} == set(first)


async def test_latency_is_felt_and_batches_queue():
    slow = Latency(overhead=0.05, tail=0.0, token=0.0, max_batch=2, prefill=1e9)
    async with serving(latency=slow) as client:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await client.chat()
        assert loop.time() - start >= 0.05
        start = loop.time()
        await asyncio.gather(*(client.chat(seed=seed) for seed in range(6)))
        assert loop.time() - start >= 0.15
        chunks = await stream(client, "/v1/chat/completions", {"model": "sim-agent", "messages": ASK})
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_unicode_and_lone_surrogates_are_survived():
    async with serving() as client:
        messages = [{"role": "user", "content": "\U0001f600 é 中 \x00 " + LOOKUPS[0].question}]
        reply = await client.chat(messages, return_token_ids=True)
        assert "\U0001f600" in text_of(reply["prompt_token_ids"])
        raw = b'{"model":"sim-agent","messages":[{"role":"user","content":"\\ud800 x"}]}'
        status, _, _ = await client.post("/v1/chat/completions", raw)
        assert status in {200, 400}


async def test_start_refuses_what_cannot_be():
    with pytest.raises(ConfigError, match="no preset"):
        await start_server(Settings(preset="hard"))
    async with serving() as client:
        with pytest.raises(EndpointError, match="cannot listen"):
            await start_server(port=client.port)
    for port in (-1, 65536, 70000):
        with pytest.raises(ConfigError, match=f"port: expected a whole number from 0 to 65535, got {port}"):
            await start_server(port=port)
    with pytest.raises(ConfigError, match="host: is empty"):
        await start_server(host="")
    with pytest.raises(EndpointError, match="cannot listen"):
        await start_server(host="a" * 70)
