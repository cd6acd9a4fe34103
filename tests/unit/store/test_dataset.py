from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError, InputError
from trunkline.store.datasets.loader import load_tasks

if TYPE_CHECKING:
    from trunkline.types import Task


def load(tmp_path: Path, text: str | bytes, name: str = "q.jsonl", limit: int | None = None) -> list[Task]:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_tasks(path, limit)


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("field", ["question", "input", "prompt", "problem"])
@pytest.mark.parametrize("answer", ["answer", "target", "label", "ideal", "reference"])
def test_field_names(tmp_path: Path, field: str, answer: str) -> None:
    (task,) = load(tmp_path, lines({field: "Who?", answer: "Ada", "level": 3, "metadata": {"from": "me"}}))
    assert task.messages == [{"role": "user", "content": "Who?"}]
    assert task.reference == ("Ada",)
    assert task.metadata == {"level": 3, "from": "me"}
    assert len(task.id) == 16


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        ("Ada", ("Ada",)),
        (7, ("7",)),
        (1.5, ("1.5",)),
        (["Ada", 7, "Ada"], ("Ada", "7")),
        ([], ()),
        (None, ()),
        ("", ()),
    ],
)
def test_answers(tmp_path: Path, value: object, reference: tuple[str, ...]) -> None:
    (task,) = load(tmp_path, lines({"question": "?", "answer": value}))
    assert task.reference == reference


@pytest.mark.parametrize("field", ["messages", "prompt", "input"])
def test_messages(tmp_path: Path, field: str) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "x", "tool_call_id": "1"},
    ]
    (task,) = load(tmp_path, lines({field: messages}))
    assert task.messages == messages


def test_ids(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "question": "a"},
        {"question": "b"},
        {"question": "b"},
        {"question": "b"},
        {"question": "c"},
    ]
    tasks = load(tmp_path, lines(*rows))
    assert tasks[0].id == "7"
    base = tasks[1].id
    assert [task.id for task in tasks[2:4]] == [f"{base}-2", f"{base}-3"]
    assert [task.id for task in load(tmp_path, lines(*reversed(rows)))][2:4] == [f"{base}-2", f"{base}-3"]
    assert tasks[4].id != base


def test_blank_lines_a_byte_order_mark_and_long_lines_are_fine(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    tasks = load(
        tmp_path,
        b"\xef\xbb\xbf\r\n" + lines({"question": long}).encode() + b"\n  \n" + lines({"question": "b"}).encode(),
    )
    assert [len(task.question) for task in tasks] == [3_000_000, 1]


def test_limit_reads_no_further(tmp_path: Path) -> None:
    text = lines({"question": "a"}, {"question": "b"}) + "not json\n"
    assert len(load(tmp_path, text, limit=2)) == 2
    with pytest.raises(ConfigError, match="limit must be a whole number of at least 1, not 0"):
        load(tmp_path, text, limit=0)


def test_a_json_array_and_tables(tmp_path: Path) -> None:
    rows = [
        {"id": "1", "question": "Wer, wo?", "answer": "Ada"},
        {"id": "2", "question": 'say "hi"\nnow', "answer": "Bob"},
    ]
    expected = load(tmp_path, lines(*rows))
    assert load(tmp_path, json.dumps(rows, indent=1), "q.json") == expected
    comma = 'id,question,answer\r\n1,"Wer, wo?",Ada\r\n\r\n2,"say ""hi""\nnow",Bob\r\n'.replace("\nnow", "\nnow")
    assert load(tmp_path, "\ufeff" + comma, "q.csv") == expected
    tab = 'id\tquestion\tanswer\n1\tWer, wo?\tAda\n2\t"say ""hi""\nnow"\tBob\n'
    assert load(tmp_path, tab, "Q.TSV") == expected


def test_table_cells(tmp_path: Path) -> None:
    text = ',question,answer,metadata\n0,a,,"{""k"": 1}"\n1,b,' + "y" * 200_000 + ",\n"
    first, second = load(tmp_path, text, "q.csv")
    assert first.reference == ()
    assert first.metadata == {"column 1": "0", "k": 1}
    assert len(second.reference[0]) == 200_000
    (task,) = load(tmp_path, 'messages\n"[{""role"": ""user"", ""content"": ""hi""}]"\n', "m.csv")
    assert task.question == "hi"


@pytest.mark.parametrize(
    ("cell", "reference"),
    [
        ('["a", "b"]', ("a", "b")),
        ('[ "a",7,"a"]', ("a", "7")),
        ("[0, 1]", ("[0, 1]",)),
        ('["a"', ('["a"',)),
        ('["x"] or not', ('["x"] or not',)),
        ("[]", ("[]",)),
        ("[" * 3000 + '"', ("[" * 3000 + '"',)),
    ],
)
def test_a_cell_may_list_answers(tmp_path: Path, cell: str, reference: tuple[str, ...]) -> None:
    quoted = cell.replace('"', '""')
    (task,) = load(tmp_path, f'question,answer\n?,"{quoted}"\n', "q.csv")
    assert task.reference == reference


def test_a_listed_answer_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"q.tsv:2: answer\[1\] is null, expected a string or a number"):
        load(tmp_path, 'question\tanswer\n?\t"[""a"", null]"\n', "q.tsv")


def test_a_question_that_no_frame_could_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunkline.llm.messages.LONGEST", 2_000)
    fits = lines({"question": "x" * 1_900, "metadata": {"notes": "y" * 5_000}})
    assert len(load(tmp_path, fits)) == 1
    with pytest.raises(InputError, match=r"q.jsonl:2: question is 2,0\d\d bytes long, at most 2,000 can be sent"):
        load(tmp_path, fits + lines({"question": "x" * 2_000}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.jsonl.gz", lines({"question": "a", "answer": "b"})),
        ("Q.CSV.GZ", "question,answer\na,b\n"),
        ("q.tsv.gz", "question\tanswer\na\tb\n"),
        ("q.json.gz", '[{"question": "a", "answer": "b"}]'),
        ("q.jsonl", lines({"question": "a", "answer": "b"})),
    ],
)
def test_files_packed_by_gzip(tmp_path: Path, name: str, text: str) -> None:
    (task,) = load(tmp_path, gzip.compress(text.encode()), name)
    assert (task.question, task.reference) == ("a", ("b",))
    (plain,) = load(tmp_path, text, name.lower().removesuffix(".gz"))
    assert plain.id == task.id


HALF_BAD = b'{"question": "a"}\n{"question"}\n'
PACKED = gzip.compress(lines({"question": "a"}).encode() * 500, mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("q.jsonl.gz", PACKED[:60], "damaged, it cannot be unpacked: Compressed file ended"),
        ("q.jsonl.gz", PACKED[:20] + b"\x00\xff" * 9 + PACKED[38:], "damaged, it cannot be unpacked"),
        ("q.jsonl.gz", PACKED[:-8] + b"\0" * 8, "damaged, it cannot be unpacked: CRC check failed"),
        (
            "q.jsonl.gz",
            gzip.compress(HALF_BAD, mtime=0),
            "q.jsonl.gz:2: invalid JSON",
        ),
        ("q.jsonl.gz", HALF_BAD, "named .gz, but gzip did not make it"),
        ("q.jsonl.gz", b"", "the file is empty"),
        ("q.jsonl.zst", b"x", "compressed by Zstandard, which is not read: unpack it first"),
        ("q.jsonl", b"\x28\xb5\x2f\xfd\x00", "compressed by Zstandard"),
        ("q.txt.gz", PACKED, r"unknown kind of file; expected one of \.jsonl"),
        ("q.parquet.gz", PACKED, r"unknown kind of file; expected one of \.jsonl"),
    ],
)
def test_files_that_cannot_be_unpacked(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, data, name)


def test_packed_files_that_are_not_there_are_no_data_set_of_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data/q.jsonl.gz", "data/q.csv.zst", "data/q.gz"):
        with pytest.raises(InputError, match="no such file"):
            load_tasks(name)


def test_packed_standard_input_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(PACKED)))
    with pytest.raises(InputError, match=r"^<stdin>:1: not UTF-8, it is compressed: unpack it first"):
        load_tasks("-")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines({"question": "a"}).encode())))
    assert load_tasks("-")[0].question == "a"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\nnope\n")))
    with pytest.raises(InputError, match=r"^<stdin>:2: invalid JSON"):
        load_tasks("-")


GOOD = lines({"question": "ok"}) * 16
BAD_LINES: list[tuple[str | bytes, int | None, str]] = [
    (
        GOOD + '{"question": }\n',
        17,
        r"invalid JSON in column 14: invalid character, near \"\{\\\"question\\\": \}",
    ),
    (GOOD + '{"question": "\u00e9", x}', 17, "column 19"),
    (GOOD + '{"question": "a"', 17, "ends inside a value"),
    (GOOD + '{"question": "a"} {}', 17, "trailing"),
    (GOOD + '{"question": NaN}', 17, "invalid JSON"),
    (GOOD + '{"question": "\\ud800"}', 17, "surrogate"),
    (GOOD + "[" * 5000, 17, "nested too deeply"),
    (GOOD + "\x1b[31m oops", 17, r"\\x1b\[31m"),
    (GOOD.encode() + b'{"question": "\xff"}', 17, "not UTF-8, byte 0xff"),
    (lines({"question": "a"}).encode("utf-16"), 1, "UTF-16"),
    (GOOD + '["a"]', 17, "a list, expected an object"),
    (GOOD + '"a"', 17, "a string, expected an object"),
    (
        GOOD + lines({"query": "a", "b\x1b": 1}),
        17,
        r"no question field: it has query, b\\x1b; expected one of question",
    ),
    (GOOD + "{}", 17, "it has no fields"),
    (GOOD + lines({"question": "a", "prompt": "b"}), 17, "two question fields, question and prompt"),
    (
        GOOD + lines({"question": "a", "answer": "b", "target": "c"}),
        17,
        "two answer fields, answer and target",
    ),
    (GOOD + lines({"question": 5}), 17, "question is a number, expected a string"),
    (GOOD + lines({"question": " "}), 17, "question is empty"),
    (GOOD + lines({"messages": "hi"}), 17, "messages is a string, expected a list of messages"),
    (GOOD + lines({"messages": []}), 17, "messages is an empty list"),
    (GOOD + lines({"messages": ["hi"]}), 17, r"messages\[0\]: a message must be an object .*, not a string"),
    (
        GOOD + lines({"messages": [{"content": "hi"}]}),
        17,
        r"messages\[0\]: message field 'role' must be .*, not None",
    ),
    (
        GOOD + lines({"messages": [{"role": "human", "content": "hi"}]}),
        17,
        r"messages\[0\]: message field 'role' must be one of system, .*, not 'human'",
    ),
    (GOOD + lines({"messages": [{"role": ["x\x1b"], "content": "hi"}]}), 17, r"messages\[0\]: .*'role' .*\\x1b"),
    (GOOD + lines({"messages": [{"role": "user", "content": None}]}), 17, r"messages\[0\]: .*'content' is null"),
    (
        GOOD + lines({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}),
        17,
        r"messages\[1\]: a tool message needs the field 'tool_call_id'",
    ),
    (
        GOOD + lines({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}),
        17,
        r"messages\[0\]: assistant message field 'tool_calls\[0\].function' must be an object",
    ),
    (
        GOOD + lines({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}),
        17,
        r"messages\[0\]: user message field 'content\[0\].text' must be a string",
    ),
    ("\n" + lines([{"question": "a"}]), 2, r"it begins with \[, as a JSON array does.*\.json"),
    (
        GOOD + lines({"messages": [{"role": "user", "content": 3}]}),
        17,
        r"messages\[0\]: .*'content' .* not a number",
    ),
    (GOOD + lines({"question": "a", "answer": True}), 17, "answer is true or false"),
    (GOOD + lines({"question": "a", "answer": {"x": 1}}), 17, "answer is an object"),
    (GOOD + lines({"question": "a", "answer": ["x", None]}), 17, r"answer\[1\] is null"),
    (GOOD + lines({"question": "a", "metadata": "x"}), 17, "metadata is a string, expected an object"),
    (GOOD + lines({"question": "a", "k": 1, "info": {"k": 2}}), 17, "k stands in info and beside it"),
    (GOOD + lines({"question": "a", "id": 1.5}), 17, "id is a number, expected a string or a whole number"),
    (GOOD + lines({"question": "a", "id": " "}), 17, "id is empty"),
    (
        GOOD + lines({"question": "a", "id": 1}, {"question": "b", "id": "1"}),
        18,
        'id "1" is there already, in line 17',
    ),
    ("", None, "the file is empty"),
    ("\n \n", None, "the file is empty"),
]


@pytest.mark.parametrize(("text", "line", "message"), BAD_LINES, ids=range(len(BAD_LINES)))
def test_bad_lines(tmp_path: Path, text: str | bytes, line: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path, text)
    assert caught.value.line == line
    assert str(caught.value).startswith(f"{tmp_path / 'q.jsonl'}{f':{line}' if line else ''}: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(tmp_path)) + 300


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.json", '{"question": "a"}', r"q.json: expected an array of objects.*\.jsonl"),
        ("q.json", '[{"question": "a"},\n {"question" 1}]', r"q.json:2: invalid JSON in column 14"),
        ("q.json", '[{"question": "a"}, 5]', "row 2: a number, expected an object"),
        ("q.json", "[]", "the file is empty"),
        ("q.json", " ", "the file is empty"),
        ("q.csv", "", "the file is empty"),
        ("q.csv", "question,answer\n", "q.csv: it has a header and no rows"),
        ("q.csv", "\nWho\x1b?,Ada\n", r"q.csv: it has one line.* the columns Who\\x1b\?, Ada; .*one of them question"),
        ("q.csv", "Who?,Ada\nWo?,Bob\n", r"q.csv:2: no question field: it has Who\?, Ada"),
        ("q.csv", "question,answer\na,b\nc\n", "q.csv:3: 1 cells, but the header has 2"),
        ("q.csv", "question,answer\na,b,c\n", "q.csv:2: 3 cells, but the header has 2"),
        ("q.csv", "question,question\na,b\n", "q.csv:1: the header names question twice"),
        ("q.csv", 'question\n"a\n', "q.csv:2: cannot be read as a table"),
        ("q.csv", "question,metadata\na,{x}\n", "q.csv:2: metadata is not valid JSON"),
        ("q.csv", b"question\nok\n\xff\n", "q.csv:3: not UTF-8"),
        ("q.txt", "x", r"q.txt: unknown kind of file; expected one of \.jsonl"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, text, name)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for nothing in ("", "  "):
        with pytest.raises(InputError, match=r"^the path is empty"):
            load_tasks(nothing)
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        load_tasks(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="a directory"):
        load_tasks(tmp_path)


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "q.parquet"
    columns = {
        "id": [1.0, None, 3.0],
        "question": ["a", "b", "c"],
        "answer": [["x", "y"], None, []],
        "raw": [b"\x00\xff", None, None],
    }
    parquet.write_table(arrow.table(columns), path)
    first, second, _third = load_tasks(path)
    assert (first.id, first.reference) == ("1", ("x", "y"))
    assert len(second.id) == 16
    assert isinstance(first.metadata["raw"], str)
    assert len(load_tasks(path, 2)) == 2
    parquet.write_table(arrow.table({"query": ["a"]}), path)
    with pytest.raises(InputError, match="row 1: no question field: it has query"):
        load_tasks(path)
    path.write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        load_tasks(path)


def test_missing_extras_name_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    Path("q.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"pip install 'trunkline\[parquet\]'"):
        load_tasks("q.parquet")
    for name in ("org/name", "hf:org/name", "org/name:main@v1"):
        with pytest.raises(ConfigError, match=r"no such local file.*pip install 'trunkline\[hf\]'"):
            load_tasks(name)
    with pytest.raises(ConfigError, match="not a data set path"):
        load_tasks("hf:nothing")


def test_hub_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []

    def load_dataset(
        name: str, config: str | None, *, revision: str | None, streaming: bool
    ) -> dict[str, list[object]]:
        calls.append((name, config, revision, streaming))
        if name == "org/gone":
            raise OSError("404 \x1b[31m")
        if name == "org/parts":
            return {"a": [], "b": []}
        return {"train": [{"question": "t"}], "test": [{"question": "e", "answer": 3}]}

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.chdir(tmp_path)
    (task,) = load_tasks("org/name:main@v1.0/x")
    assert (task.question, task.reference) == ("e", ("3",))
    assert calls == [("org/name", "main", "v1.0/x", True)]
    assert load_tasks("hf:org/name#train")[0].question == "t"
    with pytest.raises(ConfigError, match="no split dev; there is train, test"):
        load_tasks("org/name#dev")
    with pytest.raises(ConfigError, match="name a split by appending #split: a, b"):
        load_tasks("org/parts")
    with pytest.raises(InputError, match=r"OSError: 404 \\x1b"):
        load_tasks("org/gone")
    Path("org").mkdir()
    Path("org/name").write_text("x")
    with pytest.raises(InputError, match="unknown kind of file"):
        load_tasks("org/name")


@settings(max_examples=60)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip),
        min_size=1,
        max_size=5,
    )
)
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, questions: list[str]) -> None:
    path = tmp_path_factory.mktemp("data")
    for ascii_only in (True, False):
        text = "".join(json.dumps({"question": q}, ensure_ascii=ascii_only) + "\n" for q in questions)
        tasks = load(path, text)
        assert [task.question for task in tasks] == questions
        assert len({task.id for task in tasks}) == len(questions)


@settings(max_examples=150)
@given(
    st.binary(max_size=80) | st.text('{}[]":,\\ question\x00\n"', max_size=60).map(str.encode),
    st.sampled_from(["q.jsonl", "q.json", "q.csv", "q.tsv"]),
)
def test_any_file_gives_tasks_or_one_clear_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str
) -> None:
    message = ""
    try:
        tasks = load(tmp_path_factory.mktemp("data"), data, name)
    except InputError as problem:
        message = str(problem)
    assert message.isprintable()
    assert message or all(task.question.strip() for task in tasks)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)


@given(NAMES, NAMES, NAMES, st.sets(st.sampled_from(["question", "prompt", "answer", "label", "id", "other"])))
def test_columns_of_any_name_are_those_of_the_usual_ones(
    tmp_path_factory: pytest.TempPathFactory, question: str, answer: str, name: str, beside: set[str]
) -> None:
    folder = tmp_path_factory.mktemp("q")
    chosen = {"question": question, "answer": answer, "id": name}
    kept = {one: "kept" for one in sorted(beside) if one not in chosen.values()}
    values = {question: "2 + 2?"} | {answer: "4"} | {name: "x"}
    row = kept | {one: values[one] for one in dict.fromkeys(chosen.values())}
    (folder / "q.jsonl").write_text(json.dumps(row) + "\n")
    (task,) = load_tasks(folder / "q.jsonl", fields=chosen)
    assert (task.question, task.reference, task.id) == (values[question], (values[answer],), values[name])
    assert task.metadata == kept


def test_columns_are_named_by_text_and_tables_read_them_as_the_usual_ones(tmp_path: Path) -> None:
    text = 'body,gold,key,answer\n"[{""role"": ""user"", ""content"": ""Who?""}]","[""a"", ""b""]",7,"[""c""]"\n'
    (tmp_path / "q.csv").write_text(text)
    (task,) = load_tasks(tmp_path / "q.csv", fields=" question=body, answer=gold,id = key")
    assert (task.question, task.reference, task.id) == ("Who?", ("a", "b"), "7")
    assert task.metadata == {"answer": '["c"]'}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("question=bdy", "no question field: it has body, gold; expected bdy"),
        ("question=body,answer=god", 'no row has the column "god", which is to hold the answer'),
        ({"question": "body", "id": "key"}, 'no row has the column "key", which is to hold the id'),
        ("answr=gold", r"'answr' is no part of a task \(did you mean answer\?\); write question=COLUMN"),
        ("question=body,question=gold", "question is given twice"),
        ("question", "question must be the name of a column, not ''"),
        ({"question": 7}, "question must be the name of a column, not 7"),
        ("", "'' is no part of a task"),
        (7, "fields must be names of columns, such as question=body, not 7"),
        ({7: "body"}, "7 is no part of a task"),
    ],
)
def test_columns_that_are_not_there_are_named(tmp_path: Path, fields: object, words: str) -> None:
    (tmp_path / "q.jsonl").write_text(lines({"body": "2 + 2?", "gold": "4"}))
    with pytest.raises((InputError, ConfigError), match=words):
        load_tasks(tmp_path / "q.jsonl", fields=fields)
