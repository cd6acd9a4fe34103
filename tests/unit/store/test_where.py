"""Expressions that choose rollouts, against Python's own reading of them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.errors import ConfigError
from trunkline.store.stats.where import FIELDS, compiled, field_reader

METADATA = ("category", "level")
VALUES = {
    "turns": st.integers(0, 9),
    "reward": st.sampled_from([0.0, 0.5, 1.0]),
    "outcome": st.sampled_from(["answer", "empty", "llm_error"]),
    "category": st.sampled_from(["a", "b", ""]),
    "level": st.integers(-2, 2),
    "right": st.booleans(),
}
NUMBERS = st.sampled_from(["turns", "reward", "level", "0", "1", "0.5", "-1", "metadata.level"])
TEXTS = st.sampled_from(["outcome", "category", "'a'", "'answer'", '"empty"', "metadata.category"])
TRUTHS = st.one_of(
    st.tuples(NUMBERS, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), NUMBERS).map(" ".join),
    st.tuples(NUMBERS, st.just("<"), NUMBERS, st.just("<="), NUMBERS).map(" ".join),
    st.tuples(TEXTS, st.sampled_from(["==", "!="]), TEXTS).map(" ".join),
    st.tuples(TEXTS, st.sampled_from(["in", "not in"]), st.sampled_from(["['a', 'b']", "('answer', category)"])).map(
        " ".join
    ),
    st.sampled_from(["right", "True", "not right"]),
)
EXPRESSIONS = st.recursive(
    TRUTHS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map(lambda parts: f"({''.join(parts)})"),
        inner.map(lambda one: f"(not {one})"),
    ),
    max_leaves=8,
)


class Metadata(dict[str, object]):
    """Python reads ``metadata.level`` as an attribute."""

    __getattr__ = dict.__getitem__


@given(EXPRESSIONS, st.fixed_dictionaries(VALUES))
def test_it_is_what_python_says(text: str, values: dict[str, object]):
    fields = values | {"metadata": Metadata({name: values[name] for name in METADATA})}
    meant = bool(eval(text, {"__builtins__": {}}, fields))
    assert compiled(text, METADATA)(fields) is meant


@given(st.text(max_size=12) | st.sampled_from(sorted(FIELDS)))
@example("answer")
def test_a_name_of_the_metadata_may_be_any_text(name: str):
    fields = {**dict.fromkeys(FIELDS, 3), "metadata": {name: 1, "turns": 2}}
    known = fields["metadata"]
    assert compiled(f"metadata[{name!r}] == 1", known)(fields) is (name != "turns")
    assert field_reader(f"metadata.{name}", known)(fields) == known[name]
    assert field_reader(f" metadata[{name!r}]", known)(fields) == known[name]
    assert field_reader(name, known)(fields) == (3 if name.strip() in FIELDS else 1)


@pytest.mark.parametrize("text", ["turns>5", "1", "", "metadata", "metadata.", "turnz"])
def test_a_field_is_one_name(text: str):
    with pytest.raises(ConfigError, match=r"there is no field .*; there is task, rollout"):
        field_reader(text, METADATA)


@pytest.mark.parametrize(
    ("text", "fields", "holds"),
    [
        ("reward < 1", {"reward": None}, False),
        ("reward == None", {"reward": None}, True),
        ("not reward", {"reward": None}, True),
        ("turns > 'a'", {"turns": 3}, False),
        ("'x' in answer", {"answer": None}, False),
        ("'a' in answer", {"answer": "Paris"}, True),
        ("category == 'a'", {}, False),
        ("  turns > 2  ", {"turns": 3}, True),
    ],
)
def test_what_cannot_be_compared_is_false(text: str, fields: dict[str, object], holds: bool):
    assert compiled(text, METADATA)({"metadata": {}, **fields}) is holds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("turn > 3", r"there is no field turn \(did you mean turns\?\); there is task, rollout"),
        ("metadata.lvel == 1", r"there is no field lvel \(did you mean level\?\); there is category, level"),
        ("__import__('os').system('true')", r"cannot be used; there are comparisons"),
        ("answer.__class__", "cannot be used"),
        ("metadata.level.real == 1", "cannot be used"),
        ("answer[0] == 'a'", "cannot be used"),
        ("[x for x in answer]", "cannot be used"),
        ("turns + 1 == 2", "cannot be used"),
        ("(turns := 3)", "cannot be used"),
        ("f'{answer}'", "cannot be used"),
        ("lambda: 1", "cannot be used"),
        ("answer is None", "cannot be used"),
        ("b'x' == answer", "cannot be used"),
        ("turns >", "is no expression"),
        ("", "is empty"),
        ("  ", "is empty"),
        ("turns = 3", "is no expression"),
        ("\x00", "is no expression"),
        ("not " * 60 + "right", "nested too deeply"),
        ("(" * 300 + "1" + ")" * 300, "is no expression|nested too deeply"),
        ("turns == 1 or " * 400 + "right", "is too long"),
        ("\x1b[31m > 3", "is no expression"),
    ],
)
def test_what_is_no_such_expression_is_refused(text: str, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        compiled(text, METADATA)
    assert "\x1b" not in str(caught.value)


def test_metadata_does_not_hide_a_field_and_has_a_name_of_its_own():
    fields = {"reward": 1.0, "metadata": {"reward": 7, "\x1b[31mred": 1}}
    assert compiled("reward == 1 and metadata.reward == 7", ["reward"])(fields)
    with pytest.raises(ConfigError, match="there is no field rewrd") as caught:
        compiled("rewrd == 1", ["\x1b[31mred"])
    assert "\x1b" not in str(caught.value)
    assert all(name.isidentifier() for name in FIELDS)
