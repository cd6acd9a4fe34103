"""Random trees with token ids, as hypothesis draws them: shared turns, forks, several observations, drifted prompts."""

from __future__ import annotations

import json
import math

from hypothesis import strategies as st

from trunkline._core import PROMPT, SAMPLED, SYNTHETIC, TokenBuffer, drift, last_ids
from trunkline.scoring import notes
from trunkline.scoring.notes import Verdict
from trunkline.tree.views import Tree
from trunkline.types import Task

ENDINGS = ("answer", "answer", "answer", "max_turns", "max_turns", "tool_error", "filtered")
NOTES = (
    None,
    Verdict("f", "mask"),
    Verdict("f", "mask", count_in_baseline=False),
    Verdict("f", "penalty", amount=-0.5),
)
DROPPED = Verdict("f", "drop")


def message(role: str, text: str, **fields: object) -> bytes:
    return json.dumps({"role": role, **fields, "content": text}, separators=(",", ":")).encode()


@st.composite
def token_trees(draw: st.DrawFn, *, drifts: bool = True, drops: bool = True, ids: bool = True, id: str = "q") -> Tree:
    """Draw a tree of finished rollouts."""
    tree = Tree(Task.ask("what?", "yes", id=id))
    core = tree.core
    prompt = 0
    for number in range(draw(st.integers(1, 2))):
        prompt = core.append(prompt, PROMPT, message("user", f"what? {number}"))
        if ids:
            core.tokenise(prompt, TokenBuffer([7] if core.node(prompt).depth == 1 else []))
    states = [prompt]
    for _ in range(draw(st.integers(1, 4))):
        asked = message("user", "think") if draw(st.integers(0, 5)) == 0 else None
        rollout = core.fork(draw(st.sampled_from(states)), 1, asked)
        if asked is not None and ids and core.tokens_of(core.rollout(rollout).leaf) is None:
            core.tokenise(core.rollout(rollout).leaf, TokenBuffer([90, 91]))
        steps = draw(st.integers(1, 3))
        for step in range(steps):
            _turn(draw, tree, rollout, drifts=drifts, ids=ids)
            last = step == steps - 1
            if last and draw(st.booleans()):
                break
            for number in range(draw(st.integers(1, 2))):
                text = draw(st.sampled_from("ab"))
                node = core.observe(rollout, message("tool", text, tool_call_id=f"t0000c00{number}"), core.name("a"), 1)
            if last:
                break  # never rendered
            states.append(node)
            _observed(tree, node, ids=ids)
        ended = draw(st.sampled_from(ENDINGS))
        core.close(rollout, ended, "yes" if ended == "answer" else None, "broke" if ended == "tool_error" else None)
        reward = draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, math.nan]))
        if not math.isnan(reward) and ended in {"answer", "max_turns"}:
            core.score(rollout, reward)
        verdict = draw(st.sampled_from([*NOTES, DROPPED] if drops else NOTES))
        if verdict is not None:
            notes.note(core, rollout, verdict)
    core.check()
    return tree


def _turn(draw: st.DrawFn, tree: Tree, rollout: int, *, drifts: bool, ids: bool) -> None:
    core = tree.core
    said = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    context = own = None
    if ids:
        own = TokenBuffer(
            said,
            [-0.25 * (one + 1) for one in said],
            [3] * len(said),
            [draw(st.sampled_from([0, SAMPLED, SYNTHETIC, SAMPLED])), *[SAMPLED] * (len(said) - 1)],
        )
    if drifts and ids and draw(st.booleans()):
        policy = draw(st.sampled_from(["bridge", "realign", "fork"]))
        keep = draw(st.integers(0, len(last_ids(core, core.rollout(rollout).leaf))))
        given = None if policy == "bridge" else TokenBuffer(draw(st.lists(st.integers(50, 52), min_size=1, max_size=2)))
        context = drift(core, policy, keep, given)
    text = "" if draw(st.booleans()) else "".join(map(str, said))
    words = message("assistant", text)
    figures = (9, -1, len(said)) if draw(st.booleans()) else (-1, -1, -1)
    name = core.name('m {"temperature":0.5} tools:none weights:"step-3"')
    core.turn(
        rollout,
        words,
        core.name("a"),
        name,
        core.name("stop"),
        *figures,
        0,
        1,
        b"hm" if said[0] else None,
        context,
        own,
    )


def _observed(tree: Tree, node: int, *, ids: bool) -> None:
    """Give observations their ids: all to the last, none to those before."""
    core = tree.core
    if not ids or core.tokens_of(node) is not None:
        return
    core.tokenise(node, TokenBuffer([40 + len(core.messages(node)) % 5, 41]))
    while core.tokens_of(node := core.node(node).parent) is None and node:
        core.tokenise(node, TokenBuffer([]))
