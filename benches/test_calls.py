"""What it costs to keep a call: from the reply to its row, beside the same batches without calls, and other tables."""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from msgspec.structs import astuple

from trunkline._core import CoreTree
from trunkline.llm.types import Reply, ReplyChoice
from trunkline.observability.observers import Progress
from trunkline.protocol.messages import Batch, Delta, decode_from_worker, encode
from trunkline.store.reader import RunReader
from trunkline.store.schema import CALL_COLUMNS, delta_key
from trunkline.store.writer import RunWriter
from trunkline.types import Task
from trunkline.worker.outbox import settle

CALLS, TASKS, ROUNDS = 64, 500, 200
DATA = os.urandom(1000)
REPLIES = [
    Reply(
        [ReplyChoice("x", None, [], "stop")],
        1500 + i,
        1200,
        90 + i,
        1,
        1_200_000 + i,
        "m",
        "http://h:8000/v1",
        17,
        400_000,
        "solver",
        2_000_000_000_000,
    )
    for i in range(CALLS)
]

Round = Callable[[int], object]


def places(number: int) -> list[tuple[int, int]]:
    """Task and sequence number of each of a batch's deltas; two calls share one, and tasks grow side by side."""
    return [((number * 7 + i * 13) % TASKS, number * 1000 + i) for i in range(CALLS // 2)]


def interleaved(rounds: dict[str, Round]) -> dict[str, float]:
    """Median CPU microseconds of a call in each, taken in turns."""
    spent: dict[str, list[float]] = {name: [] for name in rounds}
    for number in range(ROUNDS):
        for name, work in rounds.items():
            start = time.process_time_ns()
            work(number)
            spent[name].append((time.process_time_ns() - start) / CALLS / 1000)
    return {name: median(times) for name, times in spent.items()}


def all_in(writer: RunWriter, *, calls: bool) -> Round:
    """The way of a batch: settle, write into deltas, frame, read, make rows, write, count."""
    shot = Progress(1, 1)
    tree = CoreTree()
    message = b'{"content":"%s"}' % DATA.hex().encode()

    def work(number: int) -> None:
        deltas = []
        for i, (task, seq) in enumerate(places(number)):
            tree.append(0, 1, message[:-2] + b'%d"}' % (number * CALLS + i))
            made = [astuple(settle(reply)) for reply in REPLIES[2 * i : 2 * i + 2]] if calls else []
            data = tree.delta(made)
            assert data is not None
            deltas.append(Delta(task, seq, data, 2, 0))
        batch = decode_from_worker(encode(Batch(number, deltas, [], ["m"])))
        assert isinstance(batch, Batch)
        shot.called(writer.commit([(d.task, d.seq, d.data) for d in batch.deltas]))

    return work


def test_a_call_all_in(benchmark, capsys, tmp_path: Path) -> None:
    """The difference that calls make is printed and kept; the benchmark itself times reading them back, summed up."""
    tasks = [Task.ask(f"q{number}") for number in range(TASKS)]
    with (
        RunWriter.create(tmp_path / "without", {}, tasks) as without,
        RunWriter.create(tmp_path / "with", {}, tasks) as written,
    ):
        found = interleaved({"without": all_in(without, calls=False), "with": all_in(written, calls=True)})
    each = found["with"] - found["without"]
    benchmark.extra_info["us a call"] = round(each, 2)
    with RunReader.open(tmp_path / "with") as reader:
        summary = benchmark(reader.summary)
    assert summary.endpoints[0].requests == CALLS * ROUNDS
    with capsys.disabled():
        print(f"\na call all in: {each:.2f} us of {found['with']:.2f}; target 3: {'met' if each <= 3 else 'NOT MET'}")


COLUMNS = ", ".join(f"{name} INTEGER NOT NULL" for name in CALL_COLUMNS)
PACKED = struct.Struct("<HHiiiHqqqqH")
PLACE = "task INTEGER NOT NULL, seq INTEGER NOT NULL"
TABLES = {
    "none": "",
    "rows": f"CREATE TABLE calls (call INTEGER PRIMARY KEY, {PLACE}, {COLUMNS})",
    "rows with a key": f"CREATE TABLE calls (call, {PLACE}, {COLUMNS}, PRIMARY KEY (task, seq, call)) WITHOUT ROWID",
    "packed, a table": f"CREATE TABLE calls ({PLACE}, data BLOB, PRIMARY KEY (task, seq)) WITHOUT ROWID",
    "packed, a column": "",
}


def kept(path: Path, kind: str) -> Round:
    """Write batches of deltas, and their calls in some way."""
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = NORMAL")
    file.execute("CREATE TABLE deltas (delta INTEGER PRIMARY KEY, data BLOB, calls BLOB)")
    file.execute(TABLES[kind])
    values = [(0, 1, 1500 + i, 1200, 90 + i, 1, 17, 400_000, 1_200_000, 10_000_000 + i, 0) for i in range(CALLS)]
    row = "INSERT INTO calls VALUES (?, ?, ?" + ", ?" * len(CALL_COLUMNS) + ")"

    def work(number: int) -> None:
        file.execute("BEGIN IMMEDIATE")
        rows: list[tuple[object, ...]] = []
        for i, (task, seq) in enumerate(places(number)):
            two = values[2 * i : 2 * i + 2]
            packed = b"".join(PACKED.pack(*call) for call in two) if kind.startswith("packed") else None
            beside = packed if kind == "packed, a column" else None
            file.execute("INSERT INTO deltas VALUES (?, ?, ?)", (delta_key(task, seq), DATA, beside))
            if kind == "packed, a table":
                rows.append((task, seq, packed))
            elif kind.startswith("rows"):
                rows += [(None if kind == "rows" else n, task, seq, *call) for n, call in enumerate(two)]
        if rows:
            file.executemany("INSERT INTO calls VALUES (?, ?, ?)" if kind.startswith("packed") else row, rows)
        file.execute("COMMIT")

    return work


def test_tables(benchmark, capsys, tmp_path: Path) -> None:
    """What each way to keep a call adds to its delta."""
    found = interleaved({kind: kept(tmp_path / str(place), kind) for place, kind in enumerate(TABLES)})
    numbers = iter(range(ROUNDS, 10**9))
    work = kept(tmp_path / "benchmark", "rows")
    benchmark(lambda: work(next(numbers)))
    for kind in TABLES.keys() - {"none"}:
        benchmark.extra_info[kind] = round(found[kind] - found["none"], 2)
    with capsys.disabled():
        print("\n" + ", ".join(f"{kind} {found[kind] - found['none']:.2f} us" for kind in TABLES if kind != "none"))
