"""The events of a run rebuild its trees, in the order that they promise, whenever its file is read."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sqlite3
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from groves import said
from hypothesis import given, settings
from hypothesis import strategies as st
from old_runs import names, unpack
from places import ROOT

import trunkline as tl
from trunkline._core import MESSAGE, OBSERVATION, PROMPT, TURN, CoreTree
from trunkline.errors import DamagedRunFile
from trunkline.observability.event_reader import EventReader
from trunkline.observability.events import KINDS, RunEvent
from trunkline.scoring.notes import Graded, encode
from trunkline.store.derive import rows
from trunkline.store.reader import RunReader
from trunkline.store.writer import RunWriter
from trunkline.tree.views import message_calls

FAILED = ["tool_error", "llm_error"]
STEPS = {"message": MESSAGE, "turn": TURN, "observation": OBSERVATION}


def grown(dice: random.Random, moves: int) -> tuple[CoreTree, list[bytes]]:
    """Grow a tree by random moves, with a delta behind some of them."""
    core, deltas = CoreTree(), []
    agent, model, stop = core.name("agent"), core.name("m {}"), core.name("stop")
    prompt = core.append(core.append(0, PROMPT, said("system", "rules")), PROMPT, said("user", "what?"))
    uses: list[tuple] = []

    def cut() -> None:
        now = time.monotonic_ns() // 1000
        calls = [("u", 1, 1, 0, 1, 1, 0, 0, 5, now, "agent")] * dice.randrange(2)
        if (delta := core.delta(calls, [(*use, now - 9) for use in uses])) is not None:
            deltas.append(delta)
            uses.clear()

    core.fork(prompt, dice.randint(1, 3))
    for _ in range(moves):
        growing = core.growing
        ended = [one for one in range(core.rollouts) if one not in growing]
        word = f"{dice.randrange(3)} \x1b[31m \u202e \U0001f600"
        match dice.randrange(8), growing, ended:
            case 0 | 1 | 2, [_, *_], _:
                call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": f'{{"a": "{word}"}}'}}
                message = {"role": "assistant", "content": word} | (
                    {"tool_calls": [call]} if dice.random() < 0.5 else {}
                )
                data = json.dumps(message, separators=(",", ":")).encode()
                core.turn(dice.choice(growing), data, agent, model, stop, 10, 0, 3, 0, 1, b"aside")
            case 3, [_, *_], _:
                rollout = dice.choice(growing)
                core.observe(rollout, said("tool", word), agent, 7, dice.random() < 0.5)
                uses.append((rollout, "look", dice.random() < 0.5, 7))
            case 4, [_, *_], _:
                core.tell(dice.choice(growing), said("user", word), agent)
            case 5, [_, *_], _:
                failed = dice.random() < 0.3
                core.close(dice.choice(growing), FAILED[0] if failed else "answer", word, "broke" if failed else None)
            case 6, _, [_, *_]:
                rollout = dice.choice(ended)
                again = not math.isnan(core.rollout(rollout).reward)
                if core.rollout(rollout).termination == "answer":
                    if again:  # a rescoring, or a try that is asked again, has a delta of its own
                        cut()
                    core.score(rollout, dice.choice([0.0, 1.0, math.nan] if again else [0.0, 1.0]))
                    core.note(rollout, encode([Graded("r", 0.5, 1.0, word)]))
                    if again and dice.random() < 0.3:
                        core.close(rollout, "retried")
                    if again:
                        cut()
            case 7, [_, *_], _:
                leaf = core.rollout(dice.choice(growing)).leaf
                core.fork(leaf, 1, said("user", word) if dice.random() < 0.3 else None)
        if dice.random() < 0.4:
            cut()
    cut()
    return core, deltas


def check_against(tree: tl.Tree, events: list[RunEvent]) -> None:
    """Compare the events of a task, whole texts, with its tree, and their order with what is promised."""
    nodes: dict[int, tuple[int, str]] = {}
    began: dict[int, int] = {}
    steps: defaultdict[int, list[int]] = defaultdict(list)
    ended: dict[int, tuple] = {}
    scored: dict[int, float | None] = {}
    for event in events:
        if event.kind in STEPS:
            prompt = event.kind == "message" and event.rollout is None
            assert tree.core.node(event.node).kind == (PROMPT if prompt else STEPS[event.kind])
            assert event.parent in nodes or event.parent == 0, "the node before it was told"
            assert nodes.setdefault(event.node, (event.parent, event.text)) == (event.parent, event.text)
            if not prompt:
                assert event.rollout in began
                assert event.rollout not in ended
                steps[event.rollout].append(event.node)
            if event.kind == "turn":
                asked = message_calls(tree.node(event.node).message)
                assert [(one.id, one.name, one.arguments) for one in event.tool_calls] == asked
        elif event.kind in {"rollout_started", "fork"}:
            view = tree.core.rollout(event.rollout)
            assert (event.node, event.path, event.subgroup) == (view.point, view.path, view.subgroup)
            began[event.rollout] = event.node
            if event.kind == "fork":
                assert tree.core.rollout(event.parent).path == view.path[:-2]
                assert event.parent in began
        elif event.kind == "rollout_ended":
            assert event.rollout in began
            ended[event.rollout] = (event.termination, event.answer)
        elif event.kind == "score":
            assert event.rollout in ended, "a score behind the end"
            scored[event.rollout] = event.reward
    assert len(began) == len(tree.rollouts)
    for number, rollout in enumerate(tree.rollouts):
        path = [node.id for node in rollout.nodes]
        assert [nodes[node] for node in path] == [(node.parent.id, node.text) for node in rollout.nodes]
        own = path[path.index(began[number]) + 1 :]
        assert steps[number] in (own, [began[number], *own])
        word = rollout.termination
        assert ended.get(number) == (None if word is None else (word.value, rollout.answer))
        assert scored.get(number) == (None if math.isnan(rollout.reward) else rollout.reward)
    assert [event.time for event in events] == sorted(event.time for event in events)


def by_task(events: list[RunEvent]) -> dict[str, list[RunEvent]]:
    found: dict[str, list[RunEvent]] = {}
    for event in events:
        if getattr(event, "task", None) is not None:
            found.setdefault(event.task, []).append(event)
    return found


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_events_rebuild_any_tree_at_once_in_steps_and_in_the_middle(
    tmp_path_factory: pytest.TempPathFactory, seed: int, moves: int
):
    dice, path = random.Random(seed), tmp_path_factory.mktemp("run") / "r"
    tasks = [tl.Task.ask("what?", id=f"q{number}") for number in range(2)]
    with RunWriter.create(path, {"seed": 5}, tasks, command=[]) as writer:
        reader, late = EventReader(path, None), None
        before, stepwise, later = {}, [], []
        for number, _ in enumerate(tasks):
            core, deltas = grown(dice, moves)
            for seq, delta in enumerate(deltas):
                writer.commit([(number, seq, delta)])
                if dice.random() < 0.5:
                    stepwise += [event for batch in reader.new() for event in batch]
                if late is None and dice.random() < 0.2:
                    late = EventReader(path, None, new=True)
                    before = by_task(list(tl.events(path, text=None)))
            if dice.random() < 0.5:
                writer.commit([], [(number, *rows(core))])
        late = late or EventReader(path, None)
        stepwise += [event for batch in reader.rest() for event in batch]
        later += [event for batch in late.rest() for event in batch]
    whole = list(tl.events(path, text=None))
    assert (whole[0].kind, whole[-1].kind, whole[-1].state) == ("run_started", "run_ended", "done")
    assert by_task(stepwise) == by_task(whole)
    for task, events in by_task(later).items():
        before.setdefault(task, []).extend(events)
    assert before == by_task(whole)
    with RunReader.open(path) as opened:
        for task in tasks:
            check_against(opened.tree(task.id), by_task(whole)[task.id])


@pytest.mark.parametrize("name", names())
def test_events_of_old_run_files_rebuild_their_trees(tmp_path: Path, name: str):
    path = unpack(name, tmp_path)
    whole = list(tl.events(path, text=None))
    with RunReader.open(path) as reader:
        found = by_task(whole)
        ended = {event.task: event.digest for event in whole if event.kind == "task_ended"}
        assert len(ended) == reader.finished == whole[-1].finished
        tools = sum(event.kind == "tool_call" for event in whole)
        assert tools == sum(1 for _ in reader.tool_calls())
        for task in reader.tasks():
            tree = reader.tree(task.id)
            if task.id in found:
                check_against(tree, found[task.id])
            else:
                assert len(tree.nodes) == 1
            assert ended.get(task.id, tree.digest()) == tree.digest() or not reader._digests
    # Lines of JSON hold the same when they are read again, and nothing that could steer a terminal.
    for event in whole:
        line = event.as_json(redacted=False)
        assert line.isascii()
        assert line.isprintable()
        assert json.loads(line)["kind"] == event.kind


def test_texts_are_cut_kinds_chosen_and_an_event_loop_reads_the_same(tmp_path: Path):
    path = unpack("tree-grpo", tmp_path)
    whole = list(tl.events(path, text=None))
    cut = list(tl.events(path, kinds="turn, observation", text=7))
    assert [event.kind for event in cut] == [one.kind for one in whole if one.kind in {"turn", "observation"}]
    for event, full in zip(cut, [one for one in whole if one.kind in {"turn", "observation"}], strict=True):
        assert event.text == full.text[:7]
        left = sum(len(one.arguments) - 7 for one in getattr(full, "tool_calls", ()) if len(one.arguments) > 7)
        assert event.cut == left + max(0, len(full.text) - 7) + max(0, len(getattr(full, "reasoning", "")) - 7)

    async def read() -> list[RunEvent]:
        return [event async for event in tl.events(path, text=None, follow=True)]

    assert asyncio.run(read()) == whole


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE deltas SET data = zeroblob(40) WHERE delta = (SELECT max(delta) FROM deltas)",
        "UPDATE deltas SET data = 'text' WHERE delta = (SELECT min(delta) FROM deltas)",
        "DELETE FROM deltas WHERE delta = (SELECT min(delta) FROM deltas)",
        "UPDATE calls SET started = 9e999",
        "UPDATE uses SET tool = CAST(x'ff' AS TEXT)",
        "UPDATE trees SET nodes = 'x\x1b'",
        "INSERT INTO events VALUES (1, 'now', 'died', NULL, 99999999999, '[')",
    ],
)
def test_a_damaged_file_is_one_clear_error_behind_what_is_whole(tmp_path: Path, change: str):
    path = unpack("chain", tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    events = iter(tl.events(path))
    assert next(events).kind == "run_started"
    with pytest.raises(DamagedRunFile, match=r"is damaged: .*`trunkline check") as caught:
        list(events)
    assert str(caught.value).isprintable()


def test_the_reference_lists_each_kind_with_its_fields():
    table = re.findall(
        r"^\| `(\w+)` \| .* \| (.*) \|$", (ROOT / "docs/reference/events.md").read_text("utf-8"), re.MULTILINE
    )
    public = [getattr(tl.observability, name) for name in tl.observability.__all__]
    structs = [one for one in public if isinstance(one, type) and issubclass(one, RunEvent) and one is not RunEvent]
    fields = {str(one.__struct_config__.tag): one.__struct_fields__ for one in structs}
    assert tuple(kind for kind, _ in table) == KINDS
    assert {kind: ("version", "time", *re.findall(r"`(\w+)`", listed)) for kind, listed in table} == fields
    for one in structs:
        documented = "".join(base.__doc__ or "" for base in one.__mro__)
        assert all(f"        {field}: " in documented for field in one.__struct_fields__)
