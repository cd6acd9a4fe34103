"""How an agent speaks: what a request says in each dialect, and what a user's own dialect may get wrong."""

from __future__ import annotations

import json

import pytest
from atlas import agent, lookup, tasks
from lines import Lines

from trunkline.agent import CompiledAgent
from trunkline.errors import ConfigError
from trunkline.llm.dialects.base import Parsed
from trunkline.llm.dialects.builtin import Hermes, SearchR1
from trunkline.llm.request import Sampling
from trunkline.llm.types import Reply, ReplyChoice, Request, ToolCall
from trunkline.runner.result import Run
from trunkline.runner.run import arun
from trunkline.store.reader import RunReader
from trunkline.tools.tool import tool
from trunkline.types import Task, Termination


@tool
async def flood(size: int) -> str:
    """Say much.

    Args:
        size: How much.
    """
    return "x" * size


class Scripted:
    """Says one thing after the other, and keeps what it was asked; the last one again and again."""

    def __init__(self, *turns: str | ReplyChoice) -> None:
        self.turns = [ReplyChoice(turn, None, [], "stop") if isinstance(turn, str) else turn for turn in turns]
        self.bodies: list[dict] = []

    async def complete(self, request: Request) -> Reply:
        self.bodies.append(json.loads(request.body))
        return Reply([self.turns[min(len(self.bodies), len(self.turns)) - 1]], 5, 0, 2, 1, 10)

    async def close(self) -> None: ...


async def play(llm: Scripted, task: Task | None = None, **changes: object) -> Run:
    result = await arun(agent(**changes), [task or tasks()[0]], llm=llm, seed=1)
    with RunReader.open(result.path) as reader:
        assert reader.check() == []
    return result


def rollout(result: Run):
    (tree,) = result
    return tree.rollouts[0]


def hermes(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


# What is sent


async def test_a_hermes_run_sends_tools_and_results_as_text() -> None:
    llm = Scripted(hermes("lookup", country="France"), "<answer>Paris</answer>")
    result = await play(llm, dialect="hermes", system="Be brief.")
    assert rollout(result).answer == "Paris"
    first, second = llm.bodies
    assert "tools" not in first
    assert first["messages"][0]["content"].startswith("Be brief.\n\n# Tools")
    assert '"name":"lookup"' in first["messages"][0]["content"]
    assert second["messages"][2:] == [
        {"role": "assistant", "content": hermes("lookup", country="France")},
        {"role": "user", "content": "<tool_response>\ncapital: Paris\n</tool_response>"},
    ]


async def test_a_search_r1_run_stops_at_its_tags_and_lets_a_wasted_turn_go_on() -> None:
    llm = Scripted("Hm.", "<search>France</search>", "<answer>Paris</answer>")
    result = await play(llm, dialect="search-r1", sampling=Sampling(max_tokens=9))
    assert (rollout(result).answer, rollout(result).usage.tool_errors) == ("Paris", 1)
    assert all(body["stop"] == ["</search>", "</answer>"] for body in llm.bodies)
    assert all(body["include_stop_str_in_output"] and body["max_tokens"] == 9 for body in llm.bodies)
    last = [message["content"] for message in llm.bodies[-1]["messages"]]
    assert "neither searched nor answered" in last[3]
    assert last[5] == "<information>\ncapital: Paris\n</information>"


async def test_turns_that_do_nothing_end_a_rollout_as_its_turns_do() -> None:
    result = await play(Scripted("Hm."), dialect="search-r1", max_turns=3)
    assert rollout(result).termination == Termination.MAX_TURNS


@pytest.mark.parametrize(
    ("system", "role"),
    [("", "user"), ("Own.", "user"), ("", "system")],
)
def test_there_is_one_system_message_and_the_dialect_ends_it(system: str, role: str) -> None:
    bound = CompiledAgent(agent(dialect="hermes")).dialect
    conversation = [{"role": "user", "content": "?"}]
    if role == "system":
        conversation.insert(0, {"role": role, "content": "Said."})
    sent = [json.loads(message) for message in bound.opening(system, conversation)]
    assert [message["role"] for message in sent] == ["system", "user"]
    own = system or ("Said." if role == "system" else "")
    assert sent[0]["content"] == (f"{own}\n\n{bound.prompt}" if own else bound.prompt)


def test_a_native_agent_sends_what_it_always_sent() -> None:
    compiled = CompiledAgent(agent(system="S"))
    conversation = [{"role": "user", "content": "?"}]
    assert compiled.dialect.opening("S", conversation) == [
        b'{"role":"system","content":"S"}',
        b'{"role":"user","content":"?"}',
    ]
    assert compiled.dialect.opening("", conversation) == [b'{"role":"user","content":"?"}']
    seen = compiled.dialect.observation(ToolCall("", "f", "{}"), "r", "t0000c000")
    assert seen == b'{"role":"tool","tool_call_id":"t0000c000","content":"r"}'
    assert "dialect" not in compiled.namespace


def test_namespaces_tell_dialects_apart() -> None:
    spoken = ["native", "hermes", Hermes(instructions="Other {tools}"), "search-r1", SearchR1(keep_stop=False), Lines()]
    spaces = [CompiledAgent(agent(dialect=dialect)).namespace for dialect in spoken]
    spaces.append(CompiledAgent(agent(dialect="hermes", tools=[])).namespace)
    assert len(set(spaces)) == len(spaces)
    assert CompiledAgent(agent(dialect=Hermes())).namespace == spaces[1]


# Broken and hostile turns


async def test_a_broken_call_comes_back_or_is_repaired_by_setting() -> None:
    broken = hermes("lookup", country="France").replace("}}", "}")
    for malformed, words in (
        ("return", "they end too early"),
        ("repair", '[The tool call was no JSON object; read as {"'),
    ):
        llm = Scripted(broken, "<answer>Paris</answer>")
        result = await play(llm, dialect="hermes", malformed=malformed)
        told = llm.bodies[1]["messages"][-1]["content"]
        assert words in told
        assert ("capital: Paris" in told) == (malformed == "repair")
        assert rollout(result).usage.tool_errors == (malformed == "return")
        assert rollout(result).messages[-2]["content"] == told, "the tree has it too"


async def test_native_arguments_are_repaired_alike() -> None:
    turn = ReplyChoice("", None, [ToolCall("", "lookup", '{"country": "France"')], "tool_calls")
    llm = Scripted(turn, "<answer>Paris</answer>")
    await play(llm, malformed="repair")
    told = llm.bodies[1]["messages"][-1]
    assert told["content"] == '[The arguments were no JSON object; read as {"country": "France"}]\ncapital: Paris'
    assert told["role"] == "tool"


async def test_a_flood_of_calls_and_a_flood_of_text_are_capped_and_said() -> None:
    llm = Scripted(
        hermes("lookup", country="France") * 1001,
        hermes("nothing") + hermes("flood", size=10_000_000),
        "<answer>Paris</answer>",
    )
    result = await play(llm, dialect="hermes", tools=[lookup, flood])
    told = [message["content"] for message in llm.bodies[-1]["messages"]]
    assert "more than 1000 tool calls; none was run" in told[3]
    assert "there is no tool named 'nothing'" in told[5]
    assert len(told[6]) < 101_000
    assert "[cut: " in told[6]
    assert rollout(result).answer == "Paris"


async def test_a_cut_turn_runs_no_call() -> None:
    cut = ReplyChoice(hermes("lookup", country="France") + "<tool_call>{", None, [], "length")
    result = await play(Scripted(cut), dialect="hermes", malformed="repair")
    assert (rollout(result).termination, rollout(result).usage.tools) == (Termination.MAX_TOKENS, 0)


@pytest.mark.breaks_rollouts
async def test_a_server_that_parses_calls_itself_is_named() -> None:
    turn = ReplyChoice("", None, [ToolCall("", "lookup", "{}")], "tool_calls")
    result = await play(Scripted(turn), dialect="hermes")
    assert rollout(result).termination == Termination.LLM_ERROR
    assert "switch its tool parser off, or use dialect='native'" in rollout(result).error.message


# A user's own dialect


async def test_a_dialect_of_ones_own_is_spoken() -> None:
    llm = Scripted('<think>CALL no {}</think>\nCALL lookup {"country": "Japan"}', "<answer>Tokyo</answer>")
    result = await play(llm, dialect=Lines())
    assert rollout(result).answer == "Tokyo"
    assert [message["content"] for message in llm.bodies[1]["messages"]][::3] == [
        "Tools: lookup",
        "RESULT lookup: capital: Tokyo",
    ]


class Broken(Lines):
    def __init__(self, method: str, result: object) -> None:
        self.method, self.result = method, result

    def __getattribute__(self, name: str):
        get = object.__getattribute__
        if name != get(self, "__dict__").get("method"):
            return get(self, name)
        result = get(self, "result")

        def broken(*given):
            if isinstance(result, Exception):
                raise result
            return result

        return broken


async def test_an_answer_that_no_text_can_hold_is_kept_as_far_as_it_can_be() -> None:
    done = await play(Scripted("?"), dialect=Broken("parse", Parsed(answer="Par\ud800is")))
    assert (rollout(done).termination, rollout(done).answer) == (Termination.ANSWER, "Par\ufffdis")


CASES = [
    ("parse", ValueError("\x1b[31mno"), r"parse raised ValueError: \x1b[31mno"),
    ("parse", ConfigError("mine"), "parse raised ConfigError: mine"),
    ("parse", None, "parse must return a Parsed, not None"),
    ("parse", Parsed(["call"]), "parse returned wrong types: Parsed"),
    ("parse", Parsed([ToolCall("", 3, "{}")]), "parse returned wrong types: Parsed"),
    ("parse", Parsed(answer=3), "parse returned wrong types: Parsed"),
    ("parse", Parsed(), "parse returned neither calls nor an answer nor a problem"),
    ("observe", KeyError("x"), "observe raised KeyError"),
    ("observe", "text", "observe must return a dict, not 'text'"),
    ("observe", {"role": "robot"}, "observe returned no message: message field 'role'"),
    ("observe", {"role": "tool", "tool_call_id": "c", "content": None}, "observe returned no message: tool message"),
    ("observe", {"role": "tool", "tool_call_id": 5, "content": "x"}, "observe returned no message: a tool message"),
]


@pytest.mark.breaks_rollouts
@pytest.mark.parametrize(("method", "result", "words"), CASES)
async def test_a_dialect_that_fails_ends_the_rollout_with_its_name(method: str, result: object, words: str) -> None:
    done = await play(Scripted('CALL lookup {"country": "Japan"}'), dialect=Broken(method, result))
    assert rollout(done).termination == Termination.LLM_ERROR
    assert f"dialect Broken: {words}" in rollout(done).error.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dialect": "xml"}, "dialect must be native, hermes, search-r1"),
        ({"dialect": Lines}, r"give an instance of it, Lines\(\)"),
        ({"dialect": "search-r1", "tools": []}, "exactly one tool"),
        ({"dialect": Broken("prompt", 1)}, "dialect Broken: prompt must return a str, not 1"),
        ({"dialect": Broken("prompt", "\ud800")}, "dialect Broken: prompt holds a lone surrogate"),
        ({"dialect": Broken("prompt", KeyError("x"))}, "dialect Broken: prompt raised KeyError"),
        ({"dialect": Broken("sampling", {})}, "dialect Broken: sampling must return a Sampling, not {}"),
        ({"dialect": Broken("native", True)}, "dialect Broken: native must be true or false, not <function"),
        ({"malformed": "ignore"}, "malformed must be return or repair, not 'ignore'"),
    ],
)
def test_an_agent_refuses_what_it_cannot_speak(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        agent(**changes)
