"""The page of the run file has every table, column, kind of event and operation of a delta, and no other."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator

import pytest
from places import ROOT

from trunkline import _core
from trunkline.store import schema

PAGE = (ROOT / "docs" / "reference" / "run-file.md").read_text("utf-8")
OPERATIONS = (ROOT / "rust_core" / "core" / "src" / "wire" / "op.rs").read_text("utf-8")
CALLS = (ROOT / "rust_core" / "core" / "src" / "wire" / "call_log.rs").read_text("utf-8")


def section(heading: str) -> str:
    """The text of the page below a heading, up to the next one of any level."""
    (text,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def rows(heading: str) -> Iterator[list[str]]:
    """The cells of the rows of the tables below a heading, without their heads."""
    for line in section(heading).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and "`" in line:
            yield cells


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def fields(struct: str, source: str) -> set[str]:
    """The fields of a struct of the core."""
    (body,) = re.findall(rf"struct {struct}<'a> {{\n(.*?)\n}}", source, re.DOTALL)
    return set(re.findall(r"^    pub (\w+):", body, re.MULTILINE))


def columns() -> dict[str, list[tuple[str, str]]]:
    """Names and types of the columns of every table."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema.TABLES)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            table: list(connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,))) for table in tables
        }


COLUMNS = columns()


def test_the_tables_of_the_page_are_those_of_a_run_file():
    assert re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) == list(COLUMNS)


@pytest.mark.parametrize("table", COLUMNS)
def test_a_table_of_the_page_has_the_columns_of_the_file_with_their_types(table: str):
    printed = [(names(name)[0], kind) for name, kind, *_ in rows(f"`{table}`") if kind.isupper()]
    assert printed == COLUMNS[table]


def test_the_page_has_every_kind_of_event():
    package = "".join(path.read_text("utf-8") for path in (ROOT / "python" / "trunkline" / "controller").rglob("*.py"))
    written = set(re.findall(r"_writer\.event\(\"([^\"]+)\"", package))
    printed = {name.strip("`") for name, kind, _ in rows("`events`") if name[0] == "`" and not kind.isupper()}
    assert printed == written != set()


def test_the_page_has_every_operation_of_a_delta_with_its_code_and_fields():
    codes = {name: int(code) for name, code in re.findall(r"^const (\w+): u8 = (\d+);", OPERATIONS, re.MULTILINE)}
    codes |= {name: int(code) for name, code in re.findall(r"const (CALLS): u8 = (\d+);", CALLS)}
    (body,) = re.findall(r"enum Op<'a> {\n(.*?)\n}", OPERATIONS, re.DOTALL)
    variants = re.findall(r"^    (\w+)(?:\(.*\)| {(.*)}),$", body, re.MULTILINE)
    assert {name.upper() for name, _ in variants} | {"CALLS"} == set(codes)
    printed = {names(cells[1])[0]: (int(cells[0]), names(cells[2])) for cells in rows("Operations")}
    assert {name.upper(): code for name, (code, _) in printed.items()} == codes
    for name, given in variants:
        known = set(re.findall(r"(\w+):", given))
        assert not known or set(printed[name][1]) == known, name
    assert set(printed["Calls"][1]) == {"names", *fields("CallLog", CALLS)}


@pytest.mark.parametrize(
    ("heading", "struct", "source"),
    [
        ("A turn's call", "Call", OPERATIONS),
        ("Model calls", "ModelCall", CALLS),
        ("Tool calls", "ToolCall", CALLS),
    ],
)
def test_the_page_has_every_field_of_a_call(heading: str, struct: str, source: str):
    printed = [name for cells in rows(heading) for name in names(cells[0])]
    assert sorted(printed) == sorted(fields(struct, source))


def test_the_versions_of_the_page_are_those_that_are_written_and_read():
    printed = {cells[0]: cells[2:] for cells in rows("Versions")}
    assert printed["application"][0].startswith(f"`{schema.APPLICATION_ID:#010X}`".replace("X", "x", 1))
    assert printed["schema"] == [str(schema.SCHEMA_VERSION), ", ".join(map(str, schema.READ_VERSIONS))]
    assert printed["delta format"] == [str(_core.FORMAT), f"{_core.OLDEST_FORMAT}, {_core.FORMAT}"]
    assert printed["digest"][0] == str(_core.DIGEST_VERSION)
    assert f"| 2 | format: {_core.FORMAT} |" in PAGE
