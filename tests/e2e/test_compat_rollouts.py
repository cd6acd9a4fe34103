"""Parallel rollouts through somebody's client: every request, every failure, every tool, and what is left behind."""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from foreign import Server, capital_cities, error, message, serving
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from trunkline.compat import Node, agentic_loop, aggregate_results, integrate, run_parallel_rollouts
from trunkline.errors import ConfigError, EndpointError
from trunkline.scoring.rewards import exact_match
from trunkline.store.reader import RunReader
from trunkline.strategies.chain import Chain
from trunkline.strategies.tree_grpo import TreeGRPO
from trunkline.tools.tool import tool

LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a country up.",
        "parameters": {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
    },
}
QUESTION = "Capital of France?"
KEYS = {
    "messages",
    "answer",
    "final_answer",
    "termination",
    "error",
    "usage",
    "confidence",
    "compressed_reasoning",
    "nodes",
    "rollout",
    "reward",
}


def lookup(country: str) -> str:
    """Look a country up."""
    return f"capital: {'Paris' if country == 'France' else 'Brasilia'}"


@asynccontextmanager
async def through(
    handler: Callable[[dict], Any], **options: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Server, list[str]]]:
    """A client whose transport notes every request, and the server behind it."""
    sent: list[str] = []

    async def note(request: Any) -> None:
        sent.append(request.url.path)

    with serving(handler) as server:
        http = DefaultAsyncHttpxClient(event_hooks={"request": [note]})
        async with AsyncOpenAI(
            base_url=server.url, api_key="sk-of-mine", http_client=http, **{"max_retries": 0} | options
        ) as client:
            yield client, server, sent


def test_the_signatures_are_those_that_were_promised():
    expected = {
        Node: "(parent: 'Node | None' = None) -> 'None'",
        Node.backpropagate: "(self, reward: 'float | None') -> 'None'",
        Node.best_child: "(self, c: 'float') -> 'Node'",
        agentic_loop: "messages client model tools max_iterations=30 **kwargs",
        run_parallel_rollouts: "question num_rollouts client model tools **kwargs",
        aggregate_results: "rollout_results question",
    }
    for function, written in expected.items():
        found = inspect.signature(function)
        plain = " ".join(
            f"**{name}"
            if parameter.kind is parameter.VAR_KEYWORD
            else name + ("" if parameter.default is parameter.empty else f"={parameter.default}")
            for name, parameter in found.parameters.items()
        )
        assert written in {str(found), plain}
    assert list(inspect.signature(integrate).parameters)[:4] == ["rollout_results", "question", "client", "model"]
    assert list(map(inspect.iscoroutinefunction, (agentic_loop, run_parallel_rollouts, integrate))) == [True] * 3
    assert not inspect.iscoroutinefunction(aggregate_results)


async def test_results_are_plain_data_and_every_request_went_through_the_client(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with through(capital_cities) as (client, server, sent):
        registry = {"lookup": lookup, "nothing": lookup}
        results = await run_parallel_rollouts(QUESTION, 3, client, "m", [LOOKUP], tool_functions=registry)
        assert sent == ["/v1/chat/completions"] * len(server.bodies)
        assert len(sent) >= 4
    assert list(tmp_path.iterdir()) == [], "nothing stays on disk"
    assert [set(result) for result in results] == [KEYS] * 3
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    for number, result in enumerate(results):
        assert (result["answer"], result["final_answer"], result["termination"]) == ("Paris", "Paris", "answer")
        assert (result["error"], result["reward"], result["confidence"]) == (None, None, None)
        assert result["rollout"] == number
        assert result["usage"]["calls"] == 2
        assert result["usage"]["tools"] == 2, "lookup, and a tool that does not exist"
        roles = [said["role"] for said in result["messages"]]
        assert roles == ["user", "assistant", "tool", "tool", "assistant"]
        assert result["messages"][2]["content"] == "capital: Paris"
        assert len(result["nodes"]) == len(result["messages"])
        assert "lookup(" in result["compressed_reasoning"]
        assert "Paris" in result["compressed_reasoning"]
    assert {result["nodes"][0] for result in results} == {1}, "they share their prompt"


async def test_a_conversation_is_played_to_its_end_and_left_as_it_is():
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}]
    async with through(capital_cities) as (client, server, _):
        result = await agentic_loop(
            messages, client, "m", [LOOKUP], max_iterations=5, tool_functions={"lookup": lookup}, temperature=0.5
        )
    assert set(result) == KEYS
    assert result["answer"] == "Paris"
    assert len(messages) == 2
    assert result["messages"][:2] == messages
    assert server.bodies[0]["messages"] == messages
    assert server.bodies[0]["tools"] == [LOOKUP]
    assert server.bodies[0]["temperature"] == 0.5


async def test_a_conversation_goes_on_where_another_ended_without_an_id_twice():
    def twice(body: dict) -> dict:
        ids = [call["id"] for said in body["messages"] for call in said.get("tool_calls", ())]
        answered = [said["tool_call_id"] for said in body["messages"] if said["role"] == "tool"]
        assert len(set(ids)) == len(ids)
        assert answered == ids
        if body["messages"][-1]["role"] == "user":
            return message(None, [("lookup", '{"country": "France"}')] * 2)
        return message("Paris")

    async with through(twice) as (client, server, _):
        messages = [{"role": "user", "content": QUESTION}]
        for _ in range(3):
            result = await agentic_loop(messages, client, "m", [LOOKUP], tool_functions={"lookup": lookup})
            assert (result["termination"], result["error"]) == ("answer", None)
            messages = [*result["messages"], {"role": "user", "content": "Again!"}]
        assert len(server.bodies) == 6


async def test_ids_that_others_gave_stay():
    told: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    for name in ("call_1", "t0000c000"):
        call = {"id": name, "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
        told.append({"role": "assistant", "content": None, "tool_calls": [call]})
        told.append({"role": "tool", "tool_call_id": name, "content": "Paris"})
    async with through(lambda _body: message("Paris")) as (client, server, _):
        await agentic_loop(told, client, "m", [])
    ids = [(said["tool_calls"][0]["id"] if "tool_calls" in said else said["tool_call_id"])
           for said in server.bodies[0]["messages"][1:]]  # fmt: skip
    assert ids == ["call_1", "call_1", "p00000000", "p00000000"]


async def test_no_more_requests_are_in_flight_than_was_said():
    flying = most = 0

    async def slow(_body: dict) -> dict:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.02)
        flying -= 1
        return message("Paris")

    async with through(slow) as (client, server, _):
        await run_parallel_rollouts(QUESTION, 6, client, "m", [], max_concurrency=2)
        assert (most, len(server.bodies)) == (2, 6)


async def test_messages_may_be_those_of_the_sdk():
    async with through(lambda _body: message("Paris")) as (client, server, _):
        said = (await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hm"}])).choices[
            0
        ]
        assert isinstance(said.message, openai.types.chat.ChatCompletionMessage)
        messages = [{"role": "user", "content": "hm"}, said.message, {"role": "user", "content": QUESTION}]
        result = await agentic_loop(messages, client, "m", None)
    assert result["answer"] == "Paris"
    assert [m["content"] for m in server.bodies[-1]["messages"]] == ["hm", "Paris", QUESTION]


async def test_a_question_will_do_and_a_conversation_may_have_a_name(tmp_path: Path):
    async with through(lambda _body: message("Paris")) as (client, server, _):
        for name in ("a\ud800", 7, 8):
            out = str(tmp_path / f"{name!a}.run")
            result = await agentic_loop(QUESTION, client, "m", None, trajectory_id=name, seed=1, out=out)
            assert set(result) == KEYS | {"trajectory_id"}
            assert result["trajectory_id"] == ("a\ufffd" if isinstance(name, str) else name)
            assert result["messages"][0] == {"role": "user", "content": QUESTION}
            with RunReader.open(out) as reader:
                assert [tree.task.id for tree in reader.trees()] == [str(result["trajectory_id"])]
        assert len({body["seed"] for body in server.bodies}) == 3
        assert set(await agentic_loop(QUESTION, client, "m", None)) == KEYS
        before = len(server.bodies)
        for wrong in ("", True, 2**64, 1.5, ["a"]):
            with pytest.raises(ConfigError, match="trajectory_id must be a text or a whole number of 64 bits, not"):
                await agentic_loop(QUESTION, client, "m", None, trajectory_id=wrong)
        for empty in ("", " \n"):
            with pytest.raises(ConfigError, match="messages is an empty text: give a question"):
                await agentic_loop(empty, client, "m", None)
        assert len(server.bodies) == before


async def test_fields_that_ask_for_what_is_done_anyway_pass():
    async with through(lambda _body: message("Paris")) as (client, server, _):
        await agentic_loop(QUESTION, client, "m", None, stream=False, n=1, timeout=None, extra_body={"stream": False})
        await run_parallel_rollouts(QUESTION, 1, client, "m", None, stream=None, stream_options=None)
    assert [set(body) - {"messages", "model", "seed"} for body in server.bodies] == [set(), set()]


async def test_messages_that_a_model_wrote_may_hold_anything():
    told = {"role": "assistant", "content": "a\ud800b"}
    async with through(lambda _body: message("Paris")) as (client, server, _):
        result = await agentic_loop([told, {"role": "user", "content": "q\udfff"}], client, "m", [])
    assert json.dumps(result, ensure_ascii=False).encode()
    assert [said["content"] for said in server.bodies[0]["messages"]] == ["a\ufffdb", "q\ufffd"]
    assert told["content"] == "a\ud800b"


async def test_iterations_are_model_turns():
    handler = lambda _body: message(None, [("lookup", '{"country": "France"}')])  # noqa: E731
    functions = {"lookup": lookup}
    async with through(handler) as (client, server, _):
        one = await agentic_loop([{"role": "user", "content": "q"}], client, "m", [LOOKUP], 2, tool_functions=functions)
        assert (one["termination"], one["answer"], len(server.bodies)) == ("max_turns", None, 2)
        (many,) = await run_parallel_rollouts(
            QUESTION, 1, client, "m", [LOOKUP], max_iterations=3, tool_functions=functions
        )
        assert (many["termination"], len(server.bodies)) == ("max_turns", 5)
        assert json.dumps(many, allow_nan=False)


async def test_a_tool_without_implementation_is_an_observation_and_one_warning():
    with pytest.warns(UserWarning, match="the model called the tool 'lookup', and no implementation") as caught:
        async with through(
            lambda body: message("done" if body["messages"][-1]["role"] == "tool" else None, _calls(body))
        ) as (client, _, _):
            results = await run_parallel_rollouts(QUESTION, 4, client, "m", [LOOKUP])
    assert len(caught) == 1, "for four calls"
    for result in results:
        assert result["answer"] == "done"
        seen = [said["content"] for said in result["messages"] if said["role"] == "tool"]
        assert seen == ["Error: no implementation was given for lookup; it cannot be used."]


def _calls(body: dict) -> list[tuple[str, str]]:
    return [] if body["messages"][-1]["role"] == "tool" else [("lookup", "{broken")]


async def test_a_definition_that_is_never_called_needs_no_function():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with through(lambda _body: message("Paris")) as (client, server, _):
            (result,) = await run_parallel_rollouts(QUESTION, 1, client, "m", [LOOKUP])
    assert result["answer"] == "Paris"
    assert server.bodies[0]["tools"] == [LOOKUP]


async def test_tools_may_be_mixed_and_a_failing_one_is_an_observation():
    @tool
    async def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    async def fails(country: str) -> str:
        raise ConnectionError(f"no way to {country}")

    def play(body: dict) -> dict:
        if body["messages"][-1]["role"] == "tool":
            return message(body["messages"][-1]["content"])
        return message(None, [("lookup", '{"country": "France"}'), ("shout", '{"text": "hey"}')])

    async with through(play) as (client, server, _):
        results = await run_parallel_rollouts(
            QUESTION, 2, client, "m", [LOOKUP, shout], tool_functions={"lookup": fails}
        )
    names = [each["function"]["name"] for each in server.bodies[0]["tools"]]
    assert names == ["lookup", "shout"]
    for result in results:
        seen = [said["content"] for said in result["messages"] if said["role"] == "tool"]
        assert seen == ["Error: lookup failed with ConnectionError: no way to France", "HEY"]
        assert (result["termination"], result["usage"]["tool_errors"]) == ("answer", 1)


async def test_a_failed_try_is_a_result_and_sinks_no_other():
    asked = 0

    def flaky(body: dict) -> Any:
        nonlocal asked
        asked += 1
        return error(500, "odd number") if asked in {2, 4} else message("Paris")

    async with through(flaky) as (client, _, _):
        results = await run_parallel_rollouts(QUESTION, 6, client, "m", [], reward=exact_match, reference="Paris")
    ended = [result["termination"] for result in results]
    assert sorted(ended) == ["answer"] * 4 + ["llm_error"] * 2
    for result in results:
        broke = result["termination"] == "llm_error"
        assert (result["answer"], result["reward"]) == ((None, None) if broke else ("Paris", 1.0))
        assert (result["error"] is not None) == broke
        if broke:
            assert "odd number" in result["error"]
    assert json.loads(json.dumps(results, allow_nan=False)) == results


async def test_tries_that_ended_before_the_endpoint_gave_out_are_kept(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked = 0

    def revoked(body: dict) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            return message("Paris")
        return error(401, "key revoked", "invalid_api_key")

    async with through(revoked) as (client, _, _):
        results = await run_parallel_rollouts(QUESTION, 13, client, "m", [], max_concurrency=1)
        # The first refusals after an answer are those tries' own; ten in a row are the endpoint's.
        ended = [result["termination"] for result in results]
        assert ended == ["answer", *["llm_error"] * 9, *["lost"] * 3]
        assert [result["answer"] for result in results] == ["Paris", *[None] * 12]
        assert all("key revoked" in result["error"] for result in results[1:])
        assert "sk-of-mine" not in json.dumps(results)
        with pytest.raises(EndpointError, match="key revoked"):
            await run_parallel_rollouts(QUESTION, 3, client, "m", [])
        with pytest.raises(EndpointError, match="key revoked"):
            await agentic_loop([{"role": "user", "content": "q"}], client, "m", [])
        assert list(tmp_path.iterdir()) == []


async def test_an_endpoint_that_nobody_reaches_is_one_error():
    async with AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:9/v1/chat/completions gave no answer"):
            await run_parallel_rollouts(QUESTION, 2, client, "m", [])


async def test_what_is_cancelled_leaves_nothing_running(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begun, undone = asyncio.Event(), asyncio.Event()

    async def hang(country: str) -> str:
        begun.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            undone.set()
            raise
        return country

    async with through(capital_cities) as (client, _, _):
        before = asyncio.all_tasks()
        task = asyncio.ensure_future(
            run_parallel_rollouts(QUESTION, 2, client, "m", [LOOKUP], tool_functions={"lookup": hang})
        )
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert undone.is_set()
        assert asyncio.all_tasks() == before
        assert list(tmp_path.iterdir()) == [], "nor on the disk"
        assert (await run_parallel_rollouts(QUESTION, 1, client, "m", [LOOKUP], tool_functions={"lookup": lookup}))[0][
            "answer"
        ] == "Paris"


async def test_calls_of_one_loop_do_not_disturb_each_other():
    async with through(capital_cities) as (client, _, _):
        several = await asyncio.gather(
            *(
                run_parallel_rollouts(
                    f"Capital of {country}?", 2, client, "m", [LOOKUP], tool_functions={"lookup": lookup}
                )
                for country in ("France", "Chile", "France")
            )
        )
    assert [[result["answer"] for result in results] for results in several] == [
        ["Paris"] * 2,
        ["Brasilia"] * 2,
        ["Paris"] * 2,
    ]


async def test_options_are_those_of_the_sdk():
    async with through(lambda _body: message("Paris")) as (client, server, _):
        await run_parallel_rollouts(
            QUESTION,
            1,
            client,
            "m",
            [],
            system="Be short.",
            temperature=0.6,
            top_p=0.95,
            max_tokens=77,
            max_completion_tokens=78,
            stop="END",
            presence_penalty=1.1,
            tool_choice=None,
            extra_body={"top_k": 20, "temperature": 0.7},
            seed=5,
            dialect="native",
        )
    (body,) = server.bodies
    assert body.pop("seed") >= 0
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}],
        "temperature": 0.7,
        "top_p": 0.95,
        "max_tokens": 77,
        "max_completion_tokens": 78,
        "stop": ["END"],
        "presence_penalty": 1.1,
        "top_k": 20,
    }


async def test_equal_seeds_send_equal_requests():
    async with through(lambda _body: message("Paris")) as (client, server, _):
        for seed in (5, 5, 6):
            await run_parallel_rollouts(QUESTION, 1, client, "m", [], seed=seed)
    first, again, other = (body["seed"] for body in server.bodies)
    assert first == again != other


async def test_a_strategy_may_say_where_tries_start():
    strategy = TreeGRPO(trees=1, forks=4)
    many = strategy.rollouts()
    assert many > 1
    async with through(capital_cities) as (client, _, _):
        results = await run_parallel_rollouts(
            QUESTION, many, client, "m", [LOOKUP], tool_functions={"lookup": lookup}, strategy=strategy, seed=1
        )
    assert [result["rollout"] for result in results] == list(range(many))
    first, *others = (result["nodes"] for result in results)
    assert any(len(set(first) & set(nodes)) > 1 for nodes in others), "they share more than the prompt"


async def test_a_run_file_is_kept_where_one_is_wanted(tmp_path: Path):
    async with through(capital_cities) as (client, _, _):
        results = await run_parallel_rollouts(
            QUESTION, 2, client, "m", [LOOKUP], tool_functions={"lookup": lookup}, out=tmp_path / "kept.run"
        )
    with RunReader.open(tmp_path / "kept.run") as reader:
        (tree,) = reader.trees()
    assert [rollout.messages for rollout in tree.rollouts] == [result["messages"] for result in results]
    assert [[node.id for node in rollout.nodes] for rollout in tree.rollouts] == [each["nodes"] for each in results]


async def test_no_tries_are_no_request_and_mistakes_are_found_all_the_same():
    async with through(capital_cities) as (client, server, _):
        assert await run_parallel_rollouts(QUESTION, 0, client, "m", [LOOKUP]) == []
        with pytest.raises(ConfigError, match="no option 'temperatur'"):
            await run_parallel_rollouts(QUESTION, 0, client, "m", [LOOKUP], temperatur=1)
        assert server.bodies == []


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"retries": 3}, r"run_parallel_rollouts has no option 'retries'; it has .*temperature.* extra_body"),
    "stream": ({"stream": True}, "does not take stream: replies are read whole"),
    "n": ({"n": 4}, "run_parallel_rollouts does not take n: num_rollouts says"),
    "timeout": ({"timeout": 4}, r"does not take timeout: set it on the client: client\.with_options"),
    "negative": ({"num_rollouts": -1}, "num_rollouts must be a whole number from 0 to 1048576, not -1"),
    "half": ({"num_rollouts": 2.5}, "num_rollouts must be a whole number"),
    "no question": ({"question": " "}, "question is empty"),
    "number": ({"question": 3}, "question must be a string, not 3"),
    "surrogate": ({"question": "a\ud800"}, "question holds a lone surrogate"),
    "client": ({"client": "http://x/v1"}, r"client must be an openai\.AsyncOpenAI client, not 'http://x/v1'"),
    "model": ({"model": ""}, "model is empty"),
    "tools": ({"tools": LOOKUP}, "tools must be a list of tool definitions, not an object"),
    "tool": ({"tools": [lookup]}, r"tools\[0\] is of type function, expected a tool definition"),
    "twice": ({"tools": [LOOKUP, LOOKUP]}, "two of tools are named 'lookup'"),
    "functions": ({"tool_functions": [lookup]}, "tool_functions must be a dict of functions by name, not a list"),
    "stray": (
        {"tool_functions": {"look": lookup}},
        "tool_functions has 'look', and tools defines no tool of that name",
    ),
    "both": ({"tools": [tool(lookup)], "tool_functions": {"lookup": lookup}}, "leave one of the two out"),
    "no function": ({"tool_functions": {"lookup": "lookup"}}, "its implementation must be a function, not 'lookup'"),
    "iterations": ({"max_iterations": 0}, "max_iterations must be a whole number of at least 1, not 0"),
    "concurrency": ({"max_concurrency": 0}, "max_concurrency must be a whole number of at least 1, not 0"),
    "sampling": ({"temperature": "hot"}, r"sampling\.temperature must be a number"),
    "body": ({"extra_body": [1]}, "extra_body must be a dict of body fields, not a list"),
    "reserved": ({"extra_body": {"stream": True}}, "must not hold 'stream'"),
    "strategy": ({"strategy": 3}, r"strategy must have rollouts\(\) and start\(view\), which 3 lacks"),
    "size": ({"strategy": Chain(3)}, "num_rollouts is 2, and Chain makes 3: make the two equal"),
    "torn reference": ({"reference": "a\ud800"}, "reference holds a lone surrogate"),
    "out": ({"out": 3}, "out must be the path of a run file, not 3"),
    "reference": ({"reference": {}}, "reference is an empty object, expected a string or a number"),
}


@pytest.mark.parametrize("name", list(MISTAKES))
async def test_mistakes_are_named_before_anything_is_sent(name: str):
    changed, words = MISTAKES[name]
    async with through(capital_cities) as (client, server, _):
        call = {"question": QUESTION, "num_rollouts": 2, "client": client, "model": "m", "tools": [LOOKUP]} | changed
        with pytest.raises(ConfigError, match=words):
            await run_parallel_rollouts(**call)
        assert server.bodies == []


async def test_mistakes_in_a_conversation_are_named():
    async with through(capital_cities) as (client, server, _):
        for messages, words in (
            ([], "messages must be a question or a list of at least one chat message, not an empty list"),
            (3, "messages must be a question or a list of at least one chat message, not a number"),
            ([{"role": "user"}], r"messages\[0\]: user message field 'content' is missing"),
            ([{"role": "user", "content": "q"}, 3], r"messages\[1\]: a message must be an object"),
        ):
            with pytest.raises(ConfigError, match=words):
                await agentic_loop(messages, client, "m", [])
        told = [{"role": "system", "content": "a"}, {"role": "user", "content": "q"}]
        for told[0]["role"] in ("developer", "system"):
            with pytest.raises(ConfigError, match="leave one of them out"):
                await agentic_loop(told, client, "m", [], system="b")
        with pytest.raises(ConfigError, match="agentic_loop has no option 'strategy'"):
            await agentic_loop(told, client, "m", [], strategy=Chain(1))
        blocking = openai.OpenAI(base_url=server.url, api_key="k")
        with pytest.raises(ConfigError, match="OpenAI blocks; give its async form"):
            await agentic_loop(told, blocking, "m", [])
        blocking.close()
        assert server.bodies == []
