from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trunkline.errors import ConfigError
from trunkline.types import Task

if TYPE_CHECKING:
    from collections.abc import Callable

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": 5, "messages": HI}, "^task: id is a number, expected a string"),
        ({"id": None, "messages": HI}, "^task: id is null, expected a string"),
        ({"id": " ", "messages": HI}, "^task: id is empty"),
        (
            {"id": "q\x1b", "messages": []},
            r'^task "q\\x1b": messages is an empty list, expected a list of at least one',
        ),
        ({"id": "q", "messages": "hi"}, '^task "q": messages is a string, expected a list'),
        ({"id": "q", "messages": [*HI, "hi"]}, r'^task "q": messages\[1\] is a string, expected a dict'),
        ({"id": "q", "messages": HI, "reference": "Ada"}, r'reference is a string, .*: give a tuple, \("Ada",\)'),
        ({"id": "q", "messages": HI, "reference": ("a", 7)}, r"reference\[1\] is a number, expected a string"),
        ({"id": "q", "messages": HI, "reference": None}, "reference is null, expected a tuple of strings"),
        ({"id": "q", "messages": HI, "metadata": ["x"]}, "metadata is a list, expected a dict"),
    ],
)
def test_a_task_that_cannot_be_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Task(**fields)
    assert str(caught.value).isprintable()


def test_a_list_of_references_becomes_a_tuple() -> None:
    task = Task(id="q", messages=HI, reference=["a", "b"])  # type: ignore[arg-type]
    assert task.reference == ("a", "b")
    assert msgspec.json.decode(msgspec.json.encode(task), type=Task) == task


def test_decoding_and_replacing_check_too() -> None:
    with pytest.raises(msgspec.ValidationError, match="task: id is empty"):
        msgspec.json.decode(b'{"id":"","messages":[{}]}', type=Task)
    with pytest.raises(ConfigError, match="id is empty"):
        msgspec.structs.replace(Task.ask("?"), id="")


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        (None, ()),
        ("Ada", ("Ada",)),
        (7, ("7",)),
        (-0.5, ("-0.5",)),
        (["Ada", 7], ("Ada", "7")),
        (("Ada", 1.5), ("Ada", "1.5")),
        ([], ()),
        (["Ada", " ", 7, "7"], ("Ada", "7")),
        ("", ()),
    ],
)
def test_accepted_answers(answer: Any, reference: tuple[str, ...]) -> None:
    task = Task.ask("Who?", answer)
    assert (task.id, task.question, task.reference) == ("Who?", "Who?", reference)


def test_the_question_is_the_last_thing_that_the_user_said() -> None:
    said = [("user", "Who?"), ("assistant", "Ada"), ("user", "And when?"), ("assistant", "Well,")]
    messages = [{"role": role, "content": content} for role, content in said]
    assert Task(id="q", messages=messages).question == "And when?"
    assert Task(id="q", messages=[{"role": "system", "content": "Be brief."}]).question == ""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Task.ask("Who?", True), '^task "Who\\?": answer is true or false, expected a string or a number'),
        (lambda: Task.ask("Who?", math.nan), "answer is nan"),
        (lambda: Task.ask("Who?", ["a", None], id="q"), '^task "q": answer\\[1\\] is null'),
        (lambda: Task.ask("Who?", {"a": 1}), "answer is an object"),
        (lambda: Task.ask(5), "question is a number, expected a string"),
        (lambda: Task.ask(""), "question is empty"),
        (lambda: Task.ask("Who?", id=""), "id is empty"),
    ],
)
def test_questions_that_cannot_be_asked(make: Callable[[], Task], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
