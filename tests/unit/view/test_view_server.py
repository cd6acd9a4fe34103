"""The page's server, over real sockets: whom it answers, with what."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from viewed_runs import HOSTILE, Try, add, served, write_run

from trunkline.errors import InfrastructureError, UsageError
from trunkline.types import Task
from trunkline.view.page import write_page
from trunkline.view.server import TOKEN, ViewServer, static

TASKS = [
    (Task.ask(f"{HOSTILE} {n}?", "Ada", id=f"{HOSTILE} {n}"), [Try(said=HOSTILE, answer=HOSTILE, reward=n / 2)] * 2)
    for n in range(3)
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    write_run(tmp_path / "a.run", TASKS)
    with served(tmp_path / "a.run") as server:
        yield server


def ask(
    server: ViewServer, path: str, method: str = "GET", body: str | None = None, **headers: str | None
) -> tuple[int, Any, dict[str, str]]:
    """One request as the page sends it, but for the given headers; None leaves one out."""
    sent = {"Host": f"127.0.0.1:{server.port}", TOKEN: server.token}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}  # type: ignore[dict-item]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(None if body is None else body.encode())
        answer = connection.getresponse()
        text = answer.read().decode()
        kind = answer.headers.get_content_type()
        return answer.status, json.loads(text) if kind == "application/json" else text, dict(answer.headers)
    finally:
        connection.close()


def test_the_page_gets_its_data_and_every_answer_is_fenced(server: ViewServer) -> None:
    for path in ("/", "/app.js", "/style.css", "/api/runs", "/api/runs/0/tasks", "/api/runs/0/summary", "/nothing"):
        status, _, headers = ask(server, path)
        assert status == (404 if path == "/nothing" else 200), path
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers
    _, found, _ = ask(server, "/api/runs/0/tasks?sort=reward&descending=true&size=2")
    assert [row["reward"] for row in found["rows"]] == [1.0, 0.5]
    assert found["total"] == 3


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({TOKEN: None}, 401),
        ({TOKEN: "x" * 32}, 401),
        ({TOKEN: "\xe9"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost"}, 403),
        ({"Host": None}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
def test_no_other_page_is_answered(server: ViewServer, headers: dict[str, str | None], status: int) -> None:
    found = ask(server, "/api/runs", **headers)
    assert found[0] == status or (headers.get("Host", "") is None and found[0] == 400)
    assert HOSTILE not in repr(found[1])
    if TOKEN not in headers:
        assert ask(server, "/", **headers)[0] in {status, 400}, "files are no exception"


def test_state_changes_by_post_from_the_page_alone(server: ViewServer) -> None:
    path, origin = "/api/runs/0/control", f"http://127.0.0.1:{server.port}"
    body = '{"action": "drain"}'
    assert ask(server, path)[0] in {404, 405}
    assert ask(server, path, "POST", body)[0] == 403, "without an origin"
    assert ask(server, path, "POST", body, Origin="http://localhost:1")[0] == 403
    status, found, _ = ask(server, path, "POST", body, Origin=origin)
    assert status == 400
    assert "no process of this user drives this run now" in found["error"]
    for bad in ("", "[]", '{"action": 1}', '{"action": "kill"}'):
        assert ask(server, path, "POST", bad, Origin=origin)[0] == 400
    assert ask(server, path, "POST", "x" * 5000, Origin=origin)[0] in {400, 413}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs/1/tasks", 404),
        ("/api/runs/-1/tasks", 404),
        ("/api/runs/%C2%B2/tasks", 404),
        ("/api/runs/0/nothing", 404),
        ("/api/runs/0/tasks?sort=x", 400),
        ("/api/runs/0/tasks?colour=red", 400),
        ("/api/runs/0/task?id=none", 400),
        ("/api/compare", 400),
        ("/api/runs/0/categories?field=none", 400),
        ("/../server.py", 404),
    ],
)
def test_what_is_not_there_is_said_in_a_line(server: ViewServer, path: str, status: int) -> None:
    found = ask(server, path)
    assert found[0] == status
    assert len(found[1]["error"].splitlines()) == 1


def test_a_run_that_grows_is_followed_to_its_end(tmp_path: Path) -> None:
    writer = write_run(tmp_path / "a.run", [(task, None) for task, _ in TASKS], finish=None)
    with served(tmp_path / "a.run") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/api/runs/0/live", headers={TOKEN: server.token})
        lines = connection.getresponse()
        seen = json.loads(lines.readline())
        assert (seen["live"], seen["finished"], seen["controls"]) == (True, 0, False)
        for number, (task, tries) in enumerate(TASKS):
            add(writer, number, task, tries)
            while seen["finished"] <= number:
                seen = json.loads(lines.readline())
        writer.finish("done")
        while seen["live"]:
            seen = json.loads(lines.readline())
        assert (seen["state"], seen["rollouts"]) == ("done", 6)
        assert lines.readline() == b""
        connection.close()


def test_a_page_that_is_closed_while_a_run_grows_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = write_run(tmp_path / "a.run", [(task, None) for task, _ in TASKS], finish=None)
    with served(tmp_path / "a.run") as server:
        for number, (task, tries) in enumerate(TASKS):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("GET", "/api/runs/0/live", headers={TOKEN: server.token})
            answer = connection.getresponse()
            answer.readline()
            answer.close()
            connection.close()
            add(writer, number, task, tries)
            ask(server, "/api/runs/0/overview")
    writer.finish("done")
    assert [record.getMessage() for record in caplog.records] == []


def test_a_page_in_one_file_holds_no_markup_of_models_and_may_load_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "a.run", TASKS)
    found = write_page([tmp_path / "a.run"], tmp_path / "a.html", 2)
    page = (tmp_path / "a.html").read_text("utf-8")
    assert (found.tasks, found.all, found.size) == (2, 3, len(page.encode()))
    (held,) = re.findall(r'<script type="application/json" id="data">([^<]*)</script>', page)
    data = json.loads(held)
    assert [row["id"] for row in data["runs"][0]["rows"]] == [task.id for task, _ in TASKS[:2]]
    assert page.count("<script") == 2
    assert "src=" not in page.replace(held, "")
    assert "default-src 'none'; script-src 'sha256-" in page
    with pytest.raises(UsageError, match="is the run itself"):
        write_page([tmp_path / "a.run"], tmp_path / "a.run", 2)
    with pytest.raises(InfrastructureError, match="cannot be written"):
        write_page([tmp_path / "a.run"], tmp_path / "none" / "a.html", 2)


def test_the_page_makes_no_markup_of_texts() -> None:
    script = static("app.js")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser", script
    )
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "")
    assert sum(static(name).count("\n") for name in ("app.js", "style.css", "index.html")) < 1500
