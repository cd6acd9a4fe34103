"""Teams as a loop over whole batches plays them: masks, prompts, replies and records of all rows at every call.

This is what the orchestras of Dr.MAS do (`langfengQ/DrMAS`, commit 19c632b, `agent_system/agent/orchestra` and
`multi_turn_rollout`), in code of our own. Prompts of all rows are built, context is a text for each row that grows by
concatenation, idle rows get the reply of the first active one, all replies are read, and every row of every call is a
dictionary in a buffer, from which the active ones are kept at the end.

With ``columns`` every prompt and reply is a row of token ids, too: prompts of all rows are tokenised, those of active
rows extracted, what comes of them restored to the whole batch, and all of it decoded. The tokeniser is a stand-in that
costs almost nothing: a byte is a token. The other side has none, as its engine is sent texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rivals import masks

PROMPT, REPLY = 2048, 512
"""Token ids of a prompt, padded on the left, and of a reply, padded on the right."""

Generate = Callable[[str, list[int]], list[str]]


class WholeBatch:
    """Plays questions, all of them at every call.

    Args:
        questions: One for each row.
        generate: Replies of a role to the rows of some indices.
        columns: Whether prompts and replies are token ids, too.

    Attributes:
        calls: Calls so far.
    """

    def __init__(self, questions: Sequence[str], generate: Generate, *, columns: bool) -> None:
        self._questions = questions
        self._generate = generate
        self._columns = columns
        self._context = [""] * len(questions)
        self._buffer: list[list[dict[str, Any]]] = []

    @property
    def calls(self) -> int:
        return len(self._buffer)

    def math(self, rounds: int) -> list[str]:
        """A solver, whom a verifier approves or not; returns the answers."""
        size = len(self._questions)
        approved, answers = np.zeros(size, bool), [""] * size
        for k in range(rounds):
            due = np.ones(size, bool) & ~approved
            if due.any():
                texts = self._call("solver", due, 1, True)
                for row in range(size):
                    if due[row]:
                        answers[row] = texts[row]
            if k == rounds - 1:
                break
            due = np.ones(size, bool) & ~approved
            texts = self._call("verifier", due, 1, True)
            verdicts = np.array([_approves(texts[row]) if due[row] else True for row in range(size)])
            approved |= verdicts
            if approved.all():
                break
        return [text.rpartition("\\boxed{")[2].partition("}")[0] for text in answers]

    def search(self, steps: int, look_up: Callable[[str], str]) -> list[str]:
        """A router, and by what it says a searcher or an answerer; returns the answers."""
        size = len(self._questions)
        done, answers = np.zeros(size, bool), [""] * size
        seen: list[list[tuple[str, str]]] = [[] for _ in range(size)]
        for step in range(1, steps + 1):
            active = ~done
            self._context = [""] * size
            texts = self._call("router", active, step, False, seen)
            yes = np.array([_says_yes(texts[row]) if active[row] else False for row in range(size)])
            actions = [""] * size
            for role, due in (("searcher", active & ~yes), ("answerer", active & yes)):
                if due.any() and (role == "answerer" or step < steps):
                    texts = self._call(role, due, step, role == "searcher", seen)
                    for row in range(size):
                        if due[row]:
                            actions[row] = texts[row]
            for row in range(size):
                found = re.search(r"<answer>(.*?)</answer>", actions[row], re.DOTALL)
                if active[row] and found:
                    answers[row], done[row] = found[1], True
                elif active[row]:
                    query = re.search(r"<search>(.*?)</search>", actions[row], re.DOTALL)
                    seen[row].append((actions[row], look_up(query[1]) if query else ""))
            if done.all():
                break
        return answers

    def rows(self) -> list[dict[str, Any]]:
        """The rows to train on: those that were active."""
        return [row for call in self._buffer for row in call if row["active"]]

    def _call(
        self, role: str, active: np.ndarray, step: int, shows: bool, seen: list[list[tuple[str, str]]] | None = None
    ) -> list[str]:
        """Let a role speak for the active rows, with everything that is done for all of them."""
        size = len(active)
        prompts = []
        for row, question in enumerate(self._questions):
            past = "" if seen is None else "".join(f"\n{action}\n{result}" for action, result in seen[row][-2:])
            colleagues = self._context[row] if shows else ""
            prompts.append(
                f"You are the {role}.\n# Question\n{question}{past}\n# Team\n{colleagues}\n# Your turn, step {step}\n"
            )
        said, tensors = (self._by_columns if self._columns else self._by_texts)(role, prompts, active)
        texts, valid = [], np.zeros(size, bool)
        for row, text in enumerate(said):
            projected, valid[row] = _project(text, role)
            texts.append(projected)
        for row in range(size):
            if active[row]:
                self._context[row] = self._context[row] + f'\nThe output of "{role}": {texts[row]}\n'
        self._buffer.append(
            [
                {
                    "agent_id": role,
                    "wg_id": "shared",
                    "uid": row,
                    "traj_uid": row,
                    "active": bool(active[row]),
                    "rewards": 0.0,
                    "is_action_valid": bool(valid[row]),
                    "env_step": step,
                    "anchor_obs": self._questions[row],
                    "index": row,
                    "data_source": "bench",
                    "raw_prompt": prompts[row],
                    **{name: column[row] for name, column in tensors.items()},
                }
                for row in range(size)
            ]
        )
        return texts

    def _by_texts(self, role: str, prompts: list[str], active: np.ndarray) -> tuple[list[str], masks.Batch]:
        rows = np.flatnonzero(active).tolist()
        replies = iter(self._generate(role, rows))
        said = [next(replies) if here else "" for here in active]
        return [text if here else said[rows[0]] for text, here in zip(said, active, strict=True)], {}

    def _by_columns(self, role: str, prompts: list[str], active: np.ndarray) -> tuple[list[str], masks.Batch]:
        ids = np.zeros((len(prompts), PROMPT), np.int64)
        for row, prompt in enumerate(prompts):
            tokens = np.frombuffer(prompt.encode()[-PROMPT:], np.uint8)
            ids[row, PROMPT - len(tokens) :] = tokens
        attention = (ids != 0).astype(np.int64)
        out = masks.extract({"input_ids": ids, "attention_mask": attention}, active)
        replies = np.zeros((int(active.sum()), REPLY), np.int64)
        for row, text in enumerate(self._generate(role, np.flatnonzero(active).tolist())):
            tokens = np.frombuffer(text.encode()[:REPLY], np.uint8)
            replies[row, : len(tokens)] = tokens
        back = masks.restore(out | {"responses": replies}, active)
        return [line[line != 0].astype(np.uint8).tobytes().decode() for line in back["responses"]], back


def _project(text: str, role: str) -> tuple[str, bool]:
    """What of a reply counts: the block of the role's tag, or all of it."""
    if role == "solver":
        return text, "\\boxed{" in text
    tag = {"searcher": "search", "answerer": "answer"}.get(role, "verify")
    start, end = text.find(f"<{tag}>"), text.find(f"</{tag}>")
    if start < 0 or end < 0:
        return "", False
    inner = text[start + len(tag) + 2 : end].strip()
    block = f"<{tag}>{inner}</{tag}>"
    if tag == "verify":
        block = text[:start] + block + text[end + len(tag) + 3 :]
    return block, not re.search("[\u4e00-\u9fff]", text)


def _approves(text: str) -> bool:
    return "<verify>approve</verify>" in text or "<verify>reject</verify>" not in text


def _says_yes(text: str) -> bool:
    said = text.lower()
    return "<verify>yes</verify>" in said or "<verify>no</verify>" not in said
