"""Options in a file of TOML, ``run @eval.toml``: they mean what the same options mean on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import trunkline
from foreign import capital_cities, serving
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cli.run import run

WORDS = st.text(st.characters(categories=["L", "N"], max_codepoint=0x2FF), min_size=1, max_size=6)
TABLES = st.dictionaries(WORDS.filter(str.isascii), WORDS, min_size=1, max_size=3)


def written(value: Any) -> str:
    """A value in TOML; of these types JSON has the same form, but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {written(one)}" for name, one in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def flag(name: str, value: bool) -> list[str]:
    return [f"--{name}"] if value else []


def each(name: str, values: list[str] | dict[str, str]) -> list[str]:
    texts = [f"{key}={value}" for key, value in values.items()] if isinstance(values, dict) else values
    return [part for text in texts for part in (f"--{name}", text)]


SINGLE = {
    "model": WORDS,
    "max-turns": st.integers(1, 99),
    "temperature": st.floats(0, 2),
    "system": WORDS,
    "enough": st.integers(1, 9),
    "pool": st.sampled_from(["local", "inline", "ray"]),
    "stop-when": st.sampled_from(["answer", 0.5]),
    "fail-on-error": st.sampled_from([3, 0.25]),
}
OPTIONS = {
    **{name: (values, lambda name, value: [f"--{name}={value}"]) for name, values in SINGLE.items()},
    **{name: (st.booleans(), flag) for name in ("fresh", "durable", "dry-run", "json", "logprobs")},
    "send-seed": (st.booleans(), lambda _name, value: ["--send-seed" if value else "--no-send-seed"]),
    **{name: (st.lists(WORDS, min_size=1, max_size=3), each) for name in ("stop", "filter", "tools", "base-url")},
    **dict.fromkeys(("role", "llm", "field"), (TABLES, each)),
    "price": (
        st.fixed_dictionaries({"prompt": st.integers(0, 9), "generated": st.integers(0, 9)}),
        lambda _name, value: ["--price", f"prompt={value['prompt']},generated={value['generated']}"],
    ),
}
CASES = st.fixed_dictionaries({}, optional={name: values for name, (values, _) in OPTIONS.items()})
TYPED = st.fixed_dictionaries({}, optional=SINGLE | {"stop": OPTIONS["stop"][0]})


def spelled(case: dict[str, Any]) -> list[str]:
    return [part for name, value in case.items() for part in OPTIONS[name][1](name, value)]


def read(*arguments: str) -> dict[str, Any]:
    """The parameters of a command, by the names that its options have."""
    values = run.make_context("run", ["-m", "m", *arguments]).params
    return {max(param.opts, key=len).lstrip("-"): values[str(param.name)] for param in run.params}


@given(CASES, TYPED, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_a_file_means_what_its_options_mean_and_the_command_line_goes_first(
    tmp_path_factory: pytest.TempPathFactory,
    case: dict[str, Any],
    more: dict[str, Any],
    under: bool,
    last: bool,
    order: Any,
):
    file = tmp_path_factory.mktemp("o") / "eval.toml"
    lines = [f"{name.replace('-', '_') if under else name} = {written(value)}\n" for name, value in case.items()]
    order.shuffle(lines)
    file.write_text("".join(lines), "utf-8")
    case.pop("model", None)
    typed = read("q.jsonl", *spelled(case))
    assert read("q.jsonl", f"@{file}") == typed
    now = read("q.jsonl", *spelled(more))
    mixed = read(*spelled(more), "q.jsonl", f"@{file}") if last else read(f"@{file}", "q.jsonl", *spelled(more))
    assert mixed == typed | {name: now[name] for name in more}


def test_the_environment_and_later_files_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "q.jsonl").write_text('{"question": "?"}\n')
    (tmp_path / "a.toml").write_text("\ufeffmodel = 'a'\nsystem = 'a'\nstop = ['a', 'b']\nmax-turns = 2\nseed = 3\n")
    (tmp_path / "b.toml").write_text("model = 'b'\nstop = ['c']\nquestions = 'q.jsonl'\nbase-url = 'http://h/v1'\n")
    monkeypatch.setenv("TRUNKLINE_RUN_MAX_TURNS", "5")
    done = trunkline(tmp_path, "run", "@a.toml", "@b.toml", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["settings"]
    found = {name: made["agent"][name] for name in ("model", "system", "max_turns")}
    assert found == {"model": "b", "system": "a", "max_turns": 5}
    assert (made["agent"]["sampling"]["stop"], made["seed"]) == (["c"], 3)


def test_a_value_of_an_option_is_no_file():
    assert read("--system", "@home", "q.jsonl")["system"] == "@home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with questions and a file of options that names files beside it, and a file of Python."""
    below = tmp_path / "sub"
    below.mkdir()
    (below / "q.jsonl").write_text('{"text": "Capital of France?", "gold": "Paris"}\n')
    (below / "half_rewards.py").write_text("def half(rollout):\n    return 0.5\n")
    (below / "eval.toml").write_text(
        'questions = "q.jsonl"\nmodel = "m"\nworkers = 0\ntools = ["atlas:lookup"]\nreward = "half_rewards.py:half@2"\n'
        'out = "r.run"\nlog = "log.jsonl"\njson = true\nmax_tokens = 50\nseed = 7\n'
        '[field]\nquestion = "text"\nanswer = "gold"\n[set.sampling]\ntop_k = 20\nstop = ["a", "b"]\n'
        'chat_template_kwargs = {think = false}\n[set.sampling.extra]\nown = "20"\n[budget]\ntokens = 1e6\n'
    )
    return tmp_path


def test_a_run_from_a_file_anywhere(folder: Path):
    with serving(capital_cities) as server:
        done = trunkline(folder, "run", "@sub/eval.toml", "--base-url", server.url, "--set", "sampling.top_k=5")
        assert done.returncode == 0, done.stderr
        assert "top_k" in server.bodies[0]
        assert "own" not in server.bodies[0], "what the command line says takes the place of the whole option"
        again = trunkline(folder, "run", "@sub/eval.toml", "--base-url", server.url, "--fresh", "-r", 2)
        assert again.returncode == 0, again.stderr
        sent = server.bodies[-1]
    found = {name: sent[name] for name in ("top_k", "stop", "chat_template_kwargs", "own", "max_tokens")}
    assert found == {
        "top_k": 20, "stop": ["a", "b"], "chat_template_kwargs": {"think": False}, "own": "20", "max_tokens": 50,
    }  # fmt: skip
    assert json.loads(again.stdout)["rollouts"] == 2
    assert sorted(path.name for path in (folder / "sub").iterdir() if path.is_file()) == [
        "eval.toml", "half_rewards.py", "log.jsonl", "q.jsonl", "r.run", "r.run.1",
    ]  # fmt: skip
    (folder / "again.toml").write_text('run = "sub/r.run"\nretry = ["id:nothing"]\n')
    told = trunkline(folder, "resume", "@again.toml")
    assert '"id:nothing" is neither broken' in told.stderr
    assert trunkline(folder, "resume", "@again.toml", "--retry", "broken").returncode == 0


def test_a_data_set_of_a_hub_stays_what_it_is(tmp_path: Path):
    (tmp_path / "eval.toml").write_text('questions = "org/name"\ncache = "org/cache"\n')
    found = read(f"@{tmp_path}/eval.toml")
    assert found["questions"] == "org/name"
    assert found["cache"] == str(tmp_path / "org" / "cache")
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").touch()
    assert read(f"@{tmp_path}/eval.toml")["questions"] == str(tmp_path / "org" / "name")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('modle = "m"', "@e.toml: modle is no option of run (did you mean model?); its names are those of --help"),
        ("help = true", "@e.toml: help is no option of run"),
        ('max-turns = "many"', "@e.toml: max-turns: 'many' is not a valid integer"),
        ("max-turns = 0.5", "@e.toml: max-turns: '0.5' is not a valid integer"),
        ("limit = 0", "@e.toml: limit: 0 is not in the range x>=1"),
        ("limit = true", "@e.toml: limit: it takes a value, and not true or false"),
        ("stop = [true]", "@e.toml: stop: it takes a value, and not true or false"),
        ('fresh = "yes"', "@e.toml: fresh: it takes true or false"),
        ("model = ['a', 'b']", "@e.toml: model: it takes one value, and no list"),
        ("stop = [['a']]", "@e.toml: stop: ['a'] is neither text nor a number"),
        ("seed = 2026-01-01", "@e.toml: seed: datetime.date(2026, 1, 1) is neither text nor a number"),
        ("[strategy]\nname = 'chain'", "@e.toml: strategy: it takes no table"),
        ("rollouts = 1\nepochs = 2", "@e.toml: epochs is a second name of an option that is there already"),
        ("[set.sampling]\ntop_q = 1", "'top_q' is no sampling parameter (did you mean top_p?)"),
        ("[set.sampling]\ntop_p = nan", "@e.toml: set: sampling.top_p is nan, which JSON cannot hold"),
        ("[set.sampling.extra]\nday = 2026-01-01", "which JSON cannot hold"),
        ("[field]\nquestion = 'a,answer=b'", "@e.toml: field: 'question=a,answer=b' holds a comma"),
        ("[budget]\ntoken = 1", "(did you mean tokens?)"),
        ("seed = 0x" + "f" * 5_000, "@e.toml: seed: Exceeds the limit"),
        ("a = ", "@e.toml is no TOML: Invalid value (at end of document)"),
        ("a = '\udcff'", "@e.toml is no TOML"),
        ("a = " + "[" * 5_000, "@e.toml is no TOML"),
    ],
)
def test_mistakes_name_the_file_and_the_option(text: str, words: str, tmp_path: Path):
    (tmp_path / "q.jsonl").write_text('{"question": "?"}\n')
    (tmp_path / "e.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    done = trunkline(tmp_path, "run", "q.jsonl", "-m", "m", "@e.toml", "--dry-run")
    assert done.returncode == 2
    assert words in done.stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    for name in ("none.toml", ""):
        done = trunkline(tmp_path, "run", f"@{name}", "-m", "m")
        assert done.returncode == 2
        assert f"error: @{name} cannot be read: " in done.stderr
