"""The hook before a call: what it may do, what is on record of it, and how its own mistakes are said."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from foreign import message, serving
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from trunkline.cli.tries import show_transcript
from trunkline.errors import BeforeToolFailed, ConfigError
from trunkline.llm.types import ToolCall
from trunkline.tools.calls import Origin
from trunkline.tools.review import ToolReview
from trunkline.tools.toolbox import Toolbox

TASK = tl.Task.ask("Write.", id="write")


class Slate(tl.Environment):
    """Words, which no snapshot has."""

    async def fresh(self, task: tl.Task) -> None:
        self.words: list[str] = []


@tl.tool
async def chalk(word: str, slate: Slate, times: int = 1) -> str:
    slate.words += [word] * times
    return " ".join(slate.words)


def called(call: tl.tools.ToolRequest, how: str) -> Any:
    """What a hook returns that is told how to decide."""
    match how:
        case "as it is":
            return call
        case "other":
            return msgspec.structs.replace(call, arguments={"word": call.arguments["word"].upper()})
        case "changed":
            call.arguments["times"] = 2
            return call
    return f"{how} for {call.task.id}, call {call.call.index}"


WAYS = ["as it is", "other", "changed", "no"]


@given(st.lists(st.tuples(st.sampled_from(["chalk", "nix"]), st.sampled_from(WAYS)), min_size=1, max_size=5))
async def test_calls_run_as_decided_and_again_by_the_record(script: list[tuple[str, str]]):
    asked = []

    async def hook(call: tl.tools.ToolRequest) -> Any:
        asked.append(call.call.index)
        return called(call, script[call.call.index][1])

    box, origin, review = Toolbox([chalk]), Origin(1, "write", 2, (0, 2), 3), ToolReview(hook, TASK)
    calls = [ToolCall("", name, f'{{"word": "w{index}", "times": "1"}}') for index, (name, _) in enumerate(script)]
    first, again = Slate(), Slate()
    for slate in (first, again):
        await slate.fresh(TASK)
    seen = await box.call_all(calls, first, origin, None, review)
    words: list[str] = []
    for index, (name, how) in enumerate(script):
        if name == "nix":
            assert "no tool named 'nix'" in seen[index].text
        elif how == "no":
            assert seen[index][:2] == (f"no for write, call {index}", False)
        else:
            words += {"as it is": [f"w{index}"], "other": [f"W{index}"], "changed": [f"w{index}"] * 2}[how]
            assert seen[index][:2] == (" ".join(words), True)
    assert asked == [index for index, (name, _) in enumerate(script) if name == "chalk"]
    assert sorted(review.decisions) == [index for index in asked if script[index][1] != "as it is"]
    replayed = await box.replay(calls, again, origin, 0, review.decisions)
    assert again.words == first.words == words
    ran = [index for index, (name, how) in enumerate(script) if name == "chalk" and how != "no"]
    assert [index for index, one in enumerate(replayed) if one is not None] == ran
    await box.close()


def raising(call: tl.tools.ToolRequest) -> str:
    raise ValueError("broken")


MISTAKES = [
    (lambda call: None, "returned None: return the call"),
    (lambda call: "", "returned ''"),
    (lambda call: call.arguments, "return the call, changed or not, or a text"),
    (raising, "raised ValueError: broken"),
    (lambda call: msgspec.structs.replace(call, name="other"), "it may change arguments, not the tool"),
    (lambda call: msgspec.structs.replace(call, arguments={"x": 1}), "arguments that do not fit"),
    (lambda call: msgspec.structs.replace(call, arguments={"word": object()}), "arguments that do not fit"),
    (lambda call: msgspec.structs.replace(call, arguments=[]), "arguments that do not fit"),
]


@pytest.mark.parametrize(("hook", "words"), MISTAKES)
async def test_a_mistake_of_the_hook_is_an_error(hook: Any, words: str):
    box, slate = Toolbox([chalk]), Slate()
    await slate.fresh(TASK)
    calls, origin = [ToolCall("", "chalk", '{"word": "a"}')], Origin(1, "write", 2, (0, 2), 3)
    with pytest.raises(BeforeToolFailed, match="before_tool, called for chalk in turn 3, ") as failed:
        await box.call_all(calls, slate, origin, None, ToolReview(hook, TASK))
    assert words in str(failed.value)
    assert slate.words == []
    await box.close()


@pytest.mark.parametrize("hook", ["os:sep", 3, lambda: "no", lambda call, other: "no"])
def test_what_is_no_hook_is_refused(hook: Any):
    with pytest.raises(ConfigError, match="before_tool must be a function of one call"):
        tl.Agent(model="m", tools=[chalk], environment=Slate, before_tool=hook)


def writer(body: dict) -> dict:
    """Writes a drawn word a turn."""
    choices = []
    for index in range(body.get("n") or 1):
        word = random.Random(body["seed"] + index).choice("abcde")
        said = message(None, [("chalk", json.dumps({"word": word}))])
        choices.append(said["choices"][0] | {"index": index})
    return said | {"choices": choices}


def strict(call: tl.tools.ToolRequest) -> Any:
    word = call.arguments["word"]
    return "no e" if word == "e" else called(call, "other" if word in "ab" else "as it is")


async def three(rollout: Any) -> None:
    for _ in range(3):
        await rollout.use(None, await rollout.ask())


class Writers(tl.Team):
    scribe = tl.Role(prompt=None, tools=[[chalk]], before_tool=strict)

    environment: Any = Slate

    async def play(self, rollout: tl.teams.TeamPlay) -> None:
        for _ in range(3):
            await rollout.use(await rollout.ask(self.scribe))


@pytest.mark.parametrize("form", ["agent", "program", "team"])
def test_forks_go_on_from_what_was_decided(form: str, capsys: pytest.CaptureFixture[str]):
    agent = tl.Agent(model="m", tools=[chalk], environment=Slate, before_tool=strict, max_turns=3)
    played = {"agent": {}, "program": {"program": three}, "team": {}}[form]
    with serving(writer) as server:
        run = tl.run(
            Writers(model="m") if form == "team" else agent,
            [TASK],
            llm=server.url,
            strategy=tl.TreeGRPO(trees=2, forks=4),
            workers=0,
            seed=5,
            **played,
        )
    rollouts = run["write"].rollouts
    assert len(rollouts) == 10
    assert not [rollout.error for rollout in rollouts if rollout.error]
    for rollout in rollouts:
        words: list[str] = []
        calls = [one["tool_calls"][0]["function"] for one in rollout.messages if one["role"] == "assistant"]
        told = [one["content"] for one in rollout.messages if one["role"] == "tool"]
        for call, text in zip(calls, told, strict=True):
            word = json.loads(call["arguments"])["word"]
            words += [word.upper() if word in "ab" else word] * (word != "e")
            assert text == ("no e" if word == "e" else " ".join(words))
        decided = [json.loads(call["arguments"])["word"] for call in calls]
        assert [(one.turn, one.refusal is None) for one in rollout.tool_decisions] == [
            (turn, word != "e") for turn, word in enumerate(decided) if word in "abe"
        ]
    refused = sum(one.refusal is not None for rollout in rollouts for one in rollout.tool_decisions)
    changed = sum(one.refusal is None for rollout in rollouts for one in rollout.tool_decisions)
    assert changed
    for rollout in rollouts:
        show_transcript(run["write"], rollout.id, full=True, as_json=False)
    shown = capsys.readouterr().out
    assert shown.count("before_tool: call 1 of these was refused\n") == refused
    assert shown.count('before_tool: call 1 of these ran with {"word": ') == changed
