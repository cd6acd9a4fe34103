"""The server's options: command line before environment, and errors that name what was given."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.sim.server.__main__ import main
from trunkline.sim.server.latency import Latency
from trunkline.sim.server.options import VARIABLES, Settings, read_options


def read(*arguments, **variables):
    environment = {VARIABLES + name.upper(): value for name, value in variables.items()}
    return read_options(arguments, environment, "serve")


def test_nothing_given_is_the_defaults():
    assert read() == (Settings(), "127.0.0.1", 0, False)


def test_every_option_can_be_given_in_either_way():
    wanted = Settings(
        preset="null",
        dials={"skill": "0.4", "empty": "0"},
        latency=Latency(overhead=0.5, tail=0.0),
        tool_logprobs=False,
        noncanonical=0.25,
        reasoning="field",
        history_thinking="drop",
        max_context=4096,
        cache_tokens=0,
        ignore_n=True,
        ignore_seed=True,
        fail_rate=0.5,
        fail_seed=9,
        api_key="k y",
    )
    values = {
        "host": "127.0.0.2",
        "port": "65535",
        "preset": "null",
        "latency": "overhead=0.5,tail=0",
        "noncanonical": "0.25",
        "reasoning": "field",
        "history_thinking": "drop",
        "max_context": "4096",
        "cache_tokens": "0",
        "fail_rate": "0.5",
        "fail_seed": "9",
        "api_key": "k y",
    }
    flags = ("no_tool_logprobs", "ignore_n", "ignore_seed", "exit_with_parent")
    line = [part for name, value in values.items() for part in ("--" + name.replace("_", "-"), value)]
    line += ["--dial", "skill=0.4", "--dial", "empty=0", *("--" + name.replace("_", "-") for name in flags)]
    asked = read(*line)
    assert asked == (wanted, "127.0.0.2", 65535, True)
    assert read(**values, dial="skill=0.4 empty=0", **dict.fromkeys(flags, "1")) == asked
    assert read(**values, dial="skill=0.4,empty=0", **dict.fromkeys(flags, "True")) == asked


def test_the_command_line_goes_before_the_environment():
    assert read("--port", "7", port="8", fail_seed="3").port == 7
    assert read("--dial", "skill=1", dial="empty=1").settings.dials == {"skill": "1"}
    assert read("--port", "7", port="nonsense").port == 7


@pytest.mark.parametrize("word", ["0", "false", "FALSE", "", "  "])
def test_flags_can_be_off_and_empty_variables_count_for_nothing(word):
    asked = read(ignore_n=word, exit_with_parent=word, port="" if word else word)
    assert asked == (Settings(), "127.0.0.1", 0, False)


BAD = [
    ("port", "70000", "expected a whole number from 0 to 65535, got '70000'"),
    ("port", "65536", "from 0 to 65535"),
    ("port", "-1", "from 0 to 65535"),
    ("port", "1_0", "from 0 to 65535"),
    ("port", "x", "from 0 to 65535"),
    ("preset", "hard", "invalid choice: 'hard'"),
    ("dial", "skil=1", "no dial 'skil'"),
    ("dial", "skill=1.5", "dial 'skill': Expected `float` <= 1.0, got '1.5'"),
    ("dial", "skill=nan", "dial 'skill': Expected `float` >= 0.0, got 'nan'"),
    ("dial", "skill=high", "dial 'skill': Expected `float`, got 'high'"),
    ("dial", "skill", "expected NAME=VALUE, got 'skill'"),
    ("latency", "overhead=-1", "overhead: Expected `float` >= 0.0, got '-1'"),
    ("latency", "overhead=inf", "overhead: Expected `float` <= 86400.0, got 'inf'"),
    ("latency", "speed=1", "no value 'speed'; there are overhead, prefill"),
    ("latency", "sometimes", "expected NAME=VALUE"),
    ("cache_tokens", "-1", "Expected `int` >= 0, got -1"),
    ("cache_tokens", "many", "invalid int value: 'many'"),
    ("max_context", "0", "Expected `int` >= 1, got 0"),
    ("noncanonical", "2", "Expected `float` <= 1.0, got 2.0"),
    ("fail_rate", "nan", "got nan"),
    ("fail_seed", "-1", "got -1"),
    ("reasoning", "loud", "invalid choice: 'loud'"),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD)
def test_a_wrong_value_names_the_option_or_the_variable(name, value, words):
    option = "--" + name.replace("_", "-")
    for given_as, ask in (
        (option, lambda: read(f"{option}={value}")),
        (VARIABLES + name.upper(), lambda: read(**{name: value})),
    ):
        with pytest.raises(ConfigError) as caught:
            ask()
        assert str(caught.value).startswith(f"{given_as}: ")
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "line", [["--prt", "1"], ["extra"], ["--port"], ["--ignore-n=1"], ["--pre", "null"], ["--host", ""]]
)
def test_what_is_no_option_is_refused(line):
    with pytest.raises(ConfigError):
        read(*line)


def test_a_flag_variable_needs_a_truth():
    with pytest.raises(ConfigError, match="TRUNKLINE_SIM_SERVE_IGNORE_N: expected 1, true, 0 or false, got 'perhaps'"):
        read(ignore_n="perhaps")


@given(st.text(max_size=30))
@settings(max_examples=60)
def test_any_error_is_one_printable_line(text):
    with pytest.MonkeyPatch.context() as patch:
        written = []
        patch.setattr("sys.stderr.write", written.append)
        assert main([f"--port=x{text}"]) == 2
    assert len(written) == 1
    assert written[0].startswith("error: --port: expected a whole number")
    assert written[0][:-1].isprintable()
    assert written[0][-1] == "\n"


def test_help_says_how_it_was_called(capsys):
    for prog in ("trunkline sim serve", "python -m trunkline.sim.server"):
        with pytest.raises(SystemExit) as left:
            main(["--help"], prog=prog)
        assert left.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: {prog} [-h]")
        assert "TRUNKLINE_SIM_SERVE_PORT is --port" in " ".join(shown.split())


def test_an_error_has_no_usage_block(capsys):
    assert main(["--port", "70000"], prog="trunkline sim serve") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: --port: expected a whole number from 0 to 65535, got '70000'\n"
