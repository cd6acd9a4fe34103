"""The page as a person uses it: clicks, keys, a run that grows, texts that attack it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from viewed_runs import HOSTILE, Try, add, served, write_run

from trunkline.controller.control_socket import ControlSocket
from trunkline.observability.observers import Progress
from trunkline.types import Task
from trunkline.view.page import write_page
from trunkline.view.server import ViewServer

WAIT = 60
"""Seconds after which a test gives up; nothing is measured by it."""

COLOURS = ("red", "blue", "blue")
TASKS = [
    (
        msgspec.structs.replace(
            Task.ask(f"Question {n} of {COLOURS[n % 3]}?", "Ada", id=f"t{n:03}"), metadata={"is": COLOURS[n % 3]}
        ),
        [
            Try("retried" if n == 5 else "answer", said=f'first {n} "né"', tool_failed=n == 4),
            Try("answer", "", 0.0, f"second {n}"),
            Try("llm_error", None, None, f"third {n}") if n == 4 else Try(reward=float(n % 2), said=f"third {n}"),
        ],
    )
    for n in range(130)
]


class Page:
    """The page in the browser, by what is on it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> Page:
        self.driver.get("about:blank")
        self.driver.get(address)
        return self.until(lambda: self.script("return document.body.dataset.ready") == "true")

    def script(self, text: str, *given: object) -> Any:
        return self.driver.execute_script(text, *given)

    def until(self, seen: Callable[[], object]) -> Page:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, WAIT, poll_frequency=0.02).until(lambda _: seen())
        return self

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def click(self, selector: str) -> Page:
        self.until(lambda: self.all(selector))
        self.script("arguments[0].scrollIntoView({block: 'center'})", self.all(selector)[0])
        self.all(selector)[0].click()
        return self

    def text(self, selector: str = "body") -> str:
        return str(self.script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def ids(self) -> list[str]:
        return list(self.script("return [...document.querySelectorAll('#rows tr.pick')].map((one) => one.dataset.id)"))

    def has(self, text: str, selector: str = "body") -> Page:
        return self.until(lambda: text in self.text(selector))

    def keys(self, keys: str) -> Page:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(keys).perform()
        return self

    def choose(self, selector: str, value: str) -> Page:
        self.script(
            "const [at, value] = arguments; const one = document.querySelector(at); one.value = value;"
            "one.dispatchEvent(new Event(one.type === 'search' ? 'input' : 'change'))",
            selector,
            value,
        )
        return self

    def narrow(self) -> bool:
        return bool(self.script("return document.documentElement.scrollWidth > innerWidth"))

    def gaps(self) -> bool:
        """Whether a value that is missing stands on the page as a word."""
        return bool(self.script(r"return /\b(null|undefined|NaN)\b|\[object /.test(document.body.innerText)"))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if "favicon" not in entry["message"]]


@pytest.fixture
def page(browser: Callable[..., Any]) -> Page:
    driver = browser()
    driver.get_log("browser")
    return Page(driver)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_run(folder / "a.run", TASKS)
    write_run(folder / "b.run", [(task, [one._replace(reward=1.0) for one in tries]) for task, tries in TASKS])
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ViewServer]:
    with served(folder / "a.run", folder / "b.run") as server:
        yield server


@pytest.fixture(params=["served", "file"])
def address(request: pytest.FixtureRequest, folder: Path) -> str:
    """The page as it is served, and the same page in a file."""
    if request.param == "served":
        return str(request.getfixturevalue("server").url)
    write_page([folder / "a.run", folder / "b.run"], folder / "a.html", 200)
    return (folder / "a.html").as_uri()


def test_tasks_are_sorted_filtered_searched_and_turned(page: Page, address: str) -> None:
    page.open(address).has("130 tasks, page 1 of 2", "#total")
    assert page.ids() == [f"t{n:03}" for n in range(100)]
    page.click("#after").has("page 2 of 2", "#total")
    assert page.ids()[0] == "t100"
    page.click("[data-sort=reward]").has("page 1 of 2", "#total").until(lambda: page.ids()[0] == "t000")
    page.click("[data-sort=reward]").until(lambda: page.ids()[0] == "t001")
    page.choose("#outcome", "llm_error").until(lambda: page.ids() == ["t004"])
    assert "llm error" in page.text("#rows")
    page.choose("#outcome", "").has("130 tasks", "#total")
    if page.all("#where"):
        page.choose("#where", "right and task == 't077'").until(lambda: page.ids() == ["t077"])
        page.choose("#where", "__import__('os')").has("__import__", "#problem")
        assert len(page.complaints()) == 1, "the server refused that one"
        page.choose("#where", "").has("130 tasks", "#total")
    page.keys("/").keys("OF red").has("44 tasks", "#total")
    page.choose("#text", 'FIRST 77 "NÉ').click("#turns").until(lambda: page.ids() == ["t077"])
    page.choose("#text", "content").has("0 tasks", "#total").click("#turns").has("0 tasks", "#total")
    page.choose("#text", "third 77").has("0 tasks", "#total").click("#turns").until(lambda: page.ids() == ["t077"])
    page.click("tr.pick").has("third 77", "#detail .said.here")
    assert page.script("return document.querySelector('#detail [aria-pressed=true]').dataset.rollout") == "2"
    assert page.complaints() == []
    assert not page.gaps()


def test_a_task_shows_its_tree_and_what_was_said(page: Page, address: str) -> None:
    page.open(address).click('tr[data-id="t004"]').has("reference: Ada", "#detail")
    # What broke is shown first.
    assert page.script("return document.querySelector('#detail [aria-pressed=true]').dataset.rollout") == "1"
    page.keys("]").has("refused third 4", "#detail .error")
    assert len(page.all("#detail svg .leaf")) == 3
    assert len(page.all("#detail svg rect.fork")) == 1
    page.click('#detail [data-rollout="0"]').has("first 4", "#detail .turns")
    assert "found first 4" not in page.text("#detail .turns pre:last-child")
    folded = page.all("#detail .turns details")
    assert folded
    assert not any(one.get_attribute("open") for one in folded)
    assert page.text("#detail .said.failed .bad") == "failed"
    assert len(page.all("#detail svg .node.failed")) == len(page.all("#detail .said.failed")) == 1
    page.click("#detail details.reasoning summary").has("thought: first 4", "#detail details.reasoning pre")
    page.click("#detail details.call summary").has('"q": "first 4 \\"né\\""', "#detail details.call pre")
    page.click("#detail details.shading summary")
    shades = page.script(
        "return [...document.querySelectorAll('.tokens span')].map((one) => Number(one.style.opacity))"
    )
    assert shades[0] < shades[1] < shades[2]
    page.click("#detail svg .leaf:last-child").until(
        lambda: page.script("return document.querySelector('#detail [aria-pressed=true]').dataset.rollout") == "2"
    )
    page.keys("\ue00c").until(lambda: not page.all("#detail"))
    assert page.script("return document.activeElement.dataset.id") == "t004", "back where one was"
    page.keys("j\ue007").has("reference: Ada", "#detail").has("t005", "#detail")
    page.click('#detail [data-rollout="0"]')
    page.has("llm error, reward 0.250; try 1 stands in its place", "#detail")
    assert page.text('tr[data-id="t005"] td:nth-child(4)') == "2"
    assert page.complaints() == []
    assert not page.gaps()


def test_totals_and_two_runs_side_by_side(page: Page, address: str) -> None:
    page.open(address).click("[data-tab=summary]").has("Time by agent", "#main")
    assert "llm error" in page.text("#main")
    page.has("0 masked, 0 dropped, 1 penalised", "#main")
    page.choose("#by", "is").until(lambda: len(page.all("#categories tbody tr")) == 2)
    assert re.match(r"blue\s+257\s+5\d.\d % \[[\d.]+, [\d.]+\]", page.text("#categories tbody"))
    page.click("#categories tbody tr:nth-child(2)").has("44 tasks", "#total")
    page.click("[data-tab=summary]").click("[data-tab=tasks]").has("44 tasks", "#total")
    assert page.script("return [document.querySelector('#field').value, document.querySelector('#value').value]") == [
        "is",
        '"red"',
    ]
    page.click("[data-tab=compare]").has("B less A", "#main").click("#changed tr.pick")
    page.until(lambda: len(page.all("#pair .detail")) == 2)
    page.click("[data-tab=tasks]").choose("#run", "1").has("130 tasks", "#total")
    assert page.complaints() == []
    assert not page.gaps()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("how", ["served", "file"])
def test_nothing_that_a_model_said_is_markup(
    browser: Callable[..., Any], page: Page, tmp_path: Path, width: int, how: str
) -> None:
    tries = [
        Try(said=HOSTILE, answer=HOSTILE, tool_failed=True),
        Try("tool_error", HOSTILE, 0.0, HOSTILE),
        Try(reward=0.0, said=HOSTILE),
    ]
    write_run(tmp_path / "<img src=x>.run", [(Task.ask(HOSTILE, HOSTILE, id=HOSTILE), tries)])
    browser(width)

    def look(address: str) -> None:
        page.open(address)
        page.click("tr.pick").has("reference:", "#detail")
        for rollout in range(3):
            page.click(f'#detail [data-rollout="{rollout}"]')
            for one in page.all("#detail details:not([open]) summary"):
                page.script("arguments[0].click()", one)
        assert HOSTILE[:60] in page.script("return document.body.textContent")
        assert not page.gaps()
        assert page.script("return document.querySelectorAll('img, iframe, object, embed, form, base').length") == 0
        assert page.script("return document.querySelectorAll('script').length") == (1 if how == "served" else 2)
        assert page.script("return window.broken === undefined")
        assert not page.narrow(), "the page is wider than its window"
        page.click("[data-tab=summary]").has("Time by agent", "#main")
        assert not page.narrow()
        assert page.script("return window.broken === undefined")
        assert page.complaints() == []

    if how == "served":
        with served(tmp_path / "<img src=x>.run") as server:
            look(server.url)
    else:
        write_page([tmp_path / "<img src=x>.run"], tmp_path / "a.html", 5)
        look((tmp_path / "a.html").as_uri())
    browser()


def test_a_run_with_tries_that_were_chosen_is_compared_when_that_is_asked_for(page: Page, tmp_path: Path) -> None:
    for name, ended in (("a.run", "answer"), ("b.run", "retried")):
        write_run(tmp_path / name, [(TASKS[0][0], [Try(ended, None), Try(reward=0.0)])])
    with served(tmp_path / "a.run", tmp_path / "b.run") as server:
        page.open(server.url).click("[data-tab=compare]").has("asked again because of their result", "#main")
        assert len(page.complaints()) == 1
        page.click("#selected").has("1 try because of their result; first tries", "#main").has("B less A", "#main")
    assert page.complaints() == []
    assert not page.gaps()


def test_the_token_leaves_the_address_and_is_needed(page: Page, server: ViewServer) -> None:
    page.open(server.url)
    assert server.token not in page.driver.current_url
    page.driver.refresh()
    page.has("130 tasks", "#total")
    page.script("sessionStorage.clear()")
    page.driver.get(f"http://127.0.0.1:{server.port}/#wrong")
    page.driver.refresh()
    page.has("the token is wrong", "#problem")


def test_a_run_grows_on_the_page_and_is_drained_by_a_button(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "a.run"
    writer = write_run(path, [(task, None) for task, _ in TASKS[:3]], finish=None)
    asked: list[bool] = []
    pressed = threading.Event()

    def interrupt(at_once: bool) -> None:
        asked.append(at_once)
        pressed.set()

    with served(path) as server:
        with ControlSocket(path, interrupt, Progress(3, 9, retries=3, retry_causes={"timeout": 1, "429": 2})):
            page.open(server.url).has("running", "#head").has("0 of 3 tasks", "#head")
            page.script("document.querySelector('[data-action=drain]').focus()")
            for number, (task, tries) in enumerate(TASKS[:2]):
                add(writer, number, task, tries)
                page.has(f"{number + 1} of 3 tasks", "#head")
            page.until(lambda: page.text("#rows").count("unfinished") == 1)
            shown = re.compile(r"\d % \[[\d.]+, [\d.]+\] right.*0.000\d+ spent", re.DOTALL)
            page.until(lambda: shown.search(page.text("#head")))
            page.has("retries 10: 2 × 429, 1 × timeout", "#head")
            focused = page.script("return document.activeElement.dataset.action")
            assert focused == "drain", "what did not change stays where it is, so a press that has begun is not lost"
            page.click("[data-action=drain]").has("drain asked", "#head")
            assert pressed.wait(WAIT)
            page.click("[data-action=stop]").driver.switch_to.alert.dismiss()
            assert asked == [False], "stop is asked about first"
        writer.finish("interrupted")
        page.has("interrupted", "#head").until(lambda: not page.all("[data-action]"))
    assert page.complaints() == []
    assert not page.gaps()


def test_the_file_has_no_buttons_and_runs_of_other_users_neither(page: Page, folder: Path, server: ViewServer) -> None:
    write_page([folder / "a.run"], folder / "one.html", 3)
    for address in ((folder / "one.html").as_uri(), server.url):
        page.open(address)
        assert page.all("[data-action]") == []
