"""A continuation has the law of a whole reply given its beginning, wherever that ends."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from sim_model_drive import SYSTEM, TOOLS, episode, index, world

from trunkline.sim.model import chat_template as chat
from trunkline.sim.model.choices import with_dials
from trunkline.sim.model.generation import Draft, Mind, Sampling
from trunkline.sim.model.registry import MODELS, Model, reply

LOOKUP = next(question for question in world().questions if question.kind == "lookup" and question.hops == 2)
THINK, FIRST, FAR = "<think>\n", "First things first.", "So far the pieces fit together."
QUERY = "Kosa Garener employer employs works for"
CALL = f"{THINK}{FIRST} I begin with a search.\n</think>\n<tool_call>\n"
SEARCH = f'{CALL}{{"name": "search", "arguments": {{"query": ["{QUERY}"'


@cache
def asked(kind: str) -> tuple[str, tuple[chat.Message, ...], tuple[chat.Tool, ...]]:
    """A behaviour and a conversation: the first turn of a question, or what to believe of a page."""
    start = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": LOOKUP.question}]
    _, history = episode(LOOKUP, index(), with_dials("default", {"skill": 1.0}), 2)
    messages = start if kind == "first" else history[:6]
    return "sim-agent", chat.render(messages, TOOLS), chat.tools_from(TOOLS)


def say(kind: str, seed: int, given: str = "", tail: float = 0.8, temperature: float = 1.0) -> str:
    behaviour, messages, tools = asked(kind) if kind != "names" else ("names", (), ())
    dials = {"malformed": 0.4, "empty": 0.0, "skill": 0.5, "shared_misbelief": 0.0, "length_tail": tail}
    conversation = chat.Conversation(messages, tools, given)
    model = Model(behaviour, with_dials("default", dials))
    return given + reply(model, conversation, Sampling(seed, temperature), chat.digest(conversation)).text()


@cache
def wholes(kind: str, tail: float) -> list[str]:
    return [say(kind, seed, "", tail) for seed in range(2000)]


def apart(one: Counter[str], other: Counter[str]) -> float:
    """How far two samples of one law are apart, in standard deviations of their chi-square."""
    n, m = one.total(), other.total()
    kinds = [kind for kind, count in (one + other).items() if count >= 10]
    terms = [(one[k] / n - other[k] / m) ** 2 / ((one[k] + other[k]) / (n + m) * (1 / n + 1 / m)) for k in kinds]
    return (sum(terms) - len(kinds)) / (2 * len(kinds)) ** 0.5


def kind_of(text: str) -> str:
    """A reply without the names of its thoughts: how many sentences it thinks, and what it does then."""
    thought, _, done = text.partition("</think>")
    return f"{min(thought.count('. '), 5)} {thought[-24:]} {done}"


def check(kind: str, given: str, tail: float, kinds: int) -> None:
    whole = Counter(kind_of(text) for text in wholes(kind, tail) if text.startswith(given))
    rest = Counter(kind_of(say(kind, seed, given, tail)) for seed in range(10_000, 10_400))
    assert whole.total() >= 30, "the model says this often enough"
    assert sum(count >= 10 for count in (whole + rest).values()) >= kinds, "and goes on in more ways than one"
    assert apart(whole, rest) < 4


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("first", f"{THINK}I"),
        ("first", f"{THINK}The "),
        ("first", f"{THINK}A"),
        ("first", f"{THINK}{FIRST}"),
        ("belief", f"{THINK}So"),
        ("belief", f"{THINK}{FAR[:9]}"),
    ],
)
def test_thoughts_go_on_like_those_of_a_whole_reply(kind: str, given: str):
    check(kind, given, 0.8, 2)


@pytest.mark.parametrize(
    ("there", "more"),
    [
        # At least k thoughts is at least (ln k - .35) / .8 = -.4375, .4289, .9357, 1.2953 standard deviations.
        (1, 0.3340 / 0.6691),
        (3, 0.0976 / 0.1747),
    ],
)
def test_there_are_as_many_thoughts_as_in_replies_with_at_least_so_many(there: int, more: float):
    given = THINK + f"{FIRST} " * there
    found = sum(say("first", seed, given).partition("</think>")[0].count(". ") > there for seed in range(1500))
    assert found / 1500 == pytest.approx(more, abs=4 * (more * (1 - more) / 1500) ** 0.5)


@pytest.mark.parametrize("given", [THINK, f"{THINK}I", f"{THINK}{FIRST}", f"{THINK}{FIRST} I"])
def test_where_there_is_always_one_thought_no_other_follows(given: str):
    check("first", given, 0.0, 2)


def test_what_is_next_to_impossible_is_gone_on_from_after_a_number_of_tries():
    # With this tail a second thought is one in 10**11, and what follows the first does not begin like this.
    given = f"{THINK}{FIRST} The n"
    assert say("first", 1, given, 0.05).startswith(given)
    assert say("first", 1, given, 0.05).count("<think>") == 1


@pytest.mark.parametrize(
    ("given", "unknown", "broken"),
    [
        # Of all calls .4 x 1/2 go to a tool that is not there and as many are left broken: .2 / (1 - .2) of the others.
        (CALL, 0.2, 0.2),
        (f'{CALL}{{"name": "search', 0.2, 0.2),
        (f'{CALL}{{"name": "search_', 1.0, 0.0),
        (f'{CALL}{{"name": "search"', 0.0, 0.25),
        (SEARCH, 0.0, 0.25),
        (f"{SEARCH}]", 0.0, 0.0),
        (f"{SEARCH}}}", 0.0, 1.0),
    ],
)
def test_a_call_goes_wrong_as_often_as_in_whole_replies_that_begin_like_it(given: str, unknown: float, broken: float):
    found = [say("first", seed, given) for seed in range(800)]
    for word, p in (("search_all", unknown), ('"}\n</tool_call>', broken)):
        assert sum(word in text for text in found) / 800 == pytest.approx(p, abs=4 * (p * (1 - p) / 800) ** 0.5)
    assert all(text.count("</tool_call>") == 1 and text.count('"search') == 1 for text in found)


def names(conversation: chat.Conversation, mind: Mind) -> Draft:
    draft = Draft(conversation.opened)
    draft.choose(mind, {"Ann": 0.3, "Ann Lee": 0.4, "Ann Lord": 0.1, "Bo": 0.2})
    draft.choose(mind, {" left.": 0.7, " Lost.": 0.3})
    return draft


@pytest.mark.parametrize("given", ["A", "Ann", "Ann ", "Ann L", "Ann Lo", "Ann l", "Ann Lee"])
def test_an_option_that_is_the_beginning_of_another_is_as_likely(given: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(MODELS, "names", names)
    masses = {
        f"{name}{end}": mass * share
        for name, mass in (("Ann", 0.3), ("Ann Lee", 0.4), ("Ann Lord", 0.1), ("Bo", 0.2))
        for end, share in ((" left.", 0.7), (" Lost.", 0.3))
    }
    open_ = {text: mass for text, mass in masses.items() if text.startswith(given)}
    found = Counter(say("names", seed, given) for seed in range(3000))
    assert found.keys() == open_.keys()
    for text, mass in open_.items():
        p = mass / sum(open_.values())
        assert found[text] / 3000 == pytest.approx(p, abs=4 * (p * (1 - p) / 3000) ** 0.5 + 1e-9)


@pytest.mark.parametrize("given", ["Ann l", "Ann x", "Ann Lo", "x", "Ann Lee left. And"])
def test_what_the_likeliest_never_says_is_gone_on_from_at_temperature_zero(given: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(MODELS, "names", names)
    assert say("names", 1, given, temperature=0.0).startswith(given)
