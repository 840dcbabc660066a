"""The JSON codec: forms that read back equal, and errors that name the field."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compiler.runtime.codec import JsonValue, decode, encode
from tilewright.compiler.runtime.json_form import (
    Between,
    JsonForm,
    Length,
    MalformedError,
    Matching,
    Via,
    pairs,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Row:
    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    name: Annotated[str, Matching("[a-z]+")]
    size: Annotated[int, Between(0, 9)]


@dataclass(frozen=True, slots=True)
class Circle:
    json_form: ClassVar[JsonForm] = JsonForm(constants={"shape": "circle"})

    radius: Annotated[float, Between(0.0, math.inf, above=True)]


@dataclass(frozen=True, slots=True)
class Square:
    json_form: ClassVar[JsonForm] = JsonForm(constants={"shape": "square"})

    side: int


@dataclass(frozen=True, slots=True)
class Leaf:
    json_form: ClassVar[JsonForm] = JsonForm(names={"value": "leaf"})

    value: Annotated[int, Via(str, lambda text, scope: scope[text], str)]


@dataclass(frozen=True, slots=True)
class Node:
    inner: tuple[Tree, ...]


Tree = Leaf | Node


class BadBoxError(Exception):
    pass


def fits(box: Box) -> None:
    if box.least > box.most:
        raise ValueError("least is more than most")


@dataclass(frozen=True, slots=True)
class Box(JsonValue):
    json_form: ClassVar[JsonForm] = JsonForm(
        "box",
        BadBoxError,
        constants={"kind": "box"},
        leading=("most",),
        names={"from_": "from"},
        sparse=("rows", "extra"),
        optional=("note",),
        derived=("span", "double"),
        derive=lambda box: (box.most - box.least, 2 * box.most),
        check=fits,
    )

    least: int
    most: int
    from_: str = ""
    flag: bool = False
    colour: Colour = Colour.RED
    ratio: float = 1.0
    limit: float | None = None
    key: int | str = 0
    names: Annotated[tuple[str, ...], Length(0, 3)] = ()
    rows: tuple[Row, ...] = ()
    pair: tuple[int, str] = (0, "")
    sizes: Annotated[tuple[tuple[str, int], ...], pairs(Mapping[str, int])] = ()
    tags: frozenset[str] = frozenset()
    blob: bytes = b""
    shape: Circle | Square | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    note: str = "none"


text = st.text(max_size=5)
boxes = st.builds(
    Box,
    st.integers(-5, 0),
    st.integers(0, 5),
    text,
    st.booleans(),
    st.sampled_from(Colour),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.floats(0, 9),
    st.integers(0, 9) | text,
    st.lists(text, max_size=3).map(tuple),
    st.lists(st.builds(Row, st.just("ab"), st.integers(0, 9)), max_size=3).map(tuple),
    st.tuples(st.integers(0, 9), text),
    st.dictionaries(text, st.integers(0, 9), max_size=3).map(lambda d: tuple(d.items())),
    st.frozensets(text, max_size=3),
    st.binary(max_size=5),
    st.none() | st.builds(Circle, st.floats(0.5, 9)) | st.builds(Square, st.integers(0, 9)),
    st.dictionaries(text, text | st.integers() | st.lists(text, max_size=2), max_size=2),
    text,
)


@given(boxes)
def test_values_read_back_equal(box: Box) -> None:
    assert Box.from_json(json.loads(json.dumps(box.to_json(), allow_nan=False))) == box


def test_the_form_is_as_described() -> None:
    box = Box(1, 3, "x", rows=(Row("a", 2),), sizes=(("n", 4),), tags=frozenset("ba"), blob=b"\0")
    assert json.dumps(box.to_json()) == (
        '{"kind": "box", "most": 3, "least": 1, "from": "x", "flag": false, "colour": "red", '
        '"ratio": 1.0, "limit": null, "key": 0, "names": [], "rows": [["a", 2]], "pair": [0, ""], '
        '"sizes": {"n": 4}, "tags": ["a", "b"], "blob": "AA==", "shape": null, "note": "none", '
        '"span": 2, "double": 6}'
    )
    data = box.to_json()
    del data["note"], data["rows"]
    assert Box.from_json(data).note == "none" and Box.from_json(data).rows == ()
    assert Box.from_json({**data, "ratio": 2}).ratio == 2.0
    assert type(Box.from_json({**data, "ratio": 2}).ratio) is float


GOOD = Box(0, 3).to_json()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"most": None}, "most: expected an integer, got None"),
        ({"most": True}, "most: expected an integer, got True"),
        ({"most": 3.0}, "most: expected an integer, got 3.0"),
        ({"most": 1 << 64}, "most: expected an integer, got 18446744073709551616"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"from": 3}, "from: expected a text, got 3"),
        ({"colour": "green"}, "colour: expected one of red, blue, got 'green'"),
        ({"colour": []}, "colour: expected one of red, blue, got []"),
        ({"ratio": "1"}, "ratio: expected a number, got '1'"),
        ({"ratio": math.nan}, "ratio: expected a number, got nan"),
        ({"ratio": -math.inf}, "ratio: expected a number, got -inf"),
        ({"ratio": True}, "ratio: expected a number, got True"),
        ({"ratio": 10**400}, "ratio: expected a number, got 1000"),
        ({"limit": "x"}, "limit: expected a number, got 'x'"),
        ({"key": None}, "key: expected an integer or a text, got None"),
        ({"key": True}, "key: expected an integer or a text, got True"),
        ({"names": "abc"}, "names: expected a list, got 'abc'"),
        ({"names": ["a"] * 4}, "names: 4 items, expected at most 3"),
        ({"names": ["a", "b", 3]}, "names[2]: expected a text, got 3"),
        ({"rows": [["a", 1], ["b", 99]]}, "rows[1].size: expected an integer from 0 to 9, got 99"),
        ({"rows": [["A", 1]]}, "rows[0].name: expected a text of the form [a-z]+, got 'A'"),
        ({"rows": [["a"]]}, "rows[0]: expected a list of 2, got ['a']"),
        ({"rows": {}}, "rows: expected a list, got {}"),
        ({"pair": [0, 1]}, "pair[1]: expected a text, got 1"),
        ({"sizes": {"n": "x"}}, "sizes.n: expected an integer, got 'x'"),
        ({"sizes": []}, "sizes: expected an object, got []"),
        ({"tags": [1]}, "tags[0]: expected a text, got 1"),
        ({"blob": "no base64!"}, "blob: "),
        ({"shape": 3}, "shape: expected an object, got 3"),
        ({"shape": {}}, "shape.shape: expected one of circle, square, got None"),
        ({"shape": {"shape": "circle"}}, "shape.radius: is missing"),
        ({"shape": {"shape": "circle", "radius": 0}}, "shape.radius: expected a number above 0"),
        ({"shape": {"shape": "square", "side": 1, "top": 1}}, "shape.top: is not known"),
        ({"extra": 1}, "extra: expected an object, got 1"),
        ({"other": 1}, "other: is not known"),
        ({"x" * 99: 1}, "is not known"),
        ({"kind": "bag"}, "kind: expected 'box', got 'bag'"),
        ({"least": 9}, "least is more than most"),
    ],
    ids=str,
)
def test_errors_name_the_field(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadBoxError, match=r"^malformed box: ") as caught:
        Box.from_json({**GOOD, **change})
    found = str(caught.value).removeprefix("malformed box: ")
    assert problem in found and (": " not in problem or found.startswith(problem))
    assert len(found) < 150


@pytest.mark.parametrize("name", sorted(GOOD.keys() - {"note"}))
def test_missing_fields_are_named(name: str) -> None:
    data = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(BadBoxError, match=f"malformed box: {name}: is missing"):
        Box.from_json(data)


@pytest.mark.parametrize("data", [None, [], "x", 3])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(BadBoxError, match="malformed box: expected an object, got"):
        Box.from_json(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*GOOD, "rows", "extra", "other"]), json_values, max_size=3))
def test_any_json_is_a_value_or_one_error(change: dict[str, Any]) -> None:
    try:
        box = Box.from_json({**GOOD, **change})
    except BadBoxError:
        return
    assert Box.from_json(json.loads(json.dumps(box.to_json()))) == box


def test_unions_may_be_recursive_and_are_told_apart_by_their_first_fields() -> None:
    tree = Node((Leaf(1), Node((Leaf(2), Node(())))))
    data = {"inner": [{"leaf": "1"}, {"inner": [{"leaf": "2"}, {"inner": []}]}]}
    assert encode(tree) == data
    assert decode(Node, data, {"1": 1, "2": 2}) == tree
    data["inner"][1]["inner"][1] = {"root": []}  # type: ignore[index]
    with pytest.raises(MalformedError, match=r"Node: inner\[1\].inner\[1\]: expected one of the"):
        decode(Node, data, {"1": 1, "2": 2})


@dataclass(frozen=True, slots=True)
class Choices(JsonValue):
    kind: Literal["one", "several"]
    sizes: Mapping[str, int | str | Annotated[tuple[int | str, ...], Length(1, 3)]]
    text: int | Annotated[str, Length(most=3)] = 0


def test_texts_of_a_choice_and_lists_beside_scalars() -> None:
    value = Choices("several", {"a": 3, "b": (1, "x"), "c": "y"}, "abc")
    written = value.to_json()
    assert written["sizes"] == {"a": 3, "b": [1, "x"], "c": "y"}
    assert Choices.from_json(json.loads(json.dumps(written))) == value
    for change, problem in (
        ({"kind": "none"}, "kind: expected one of one, several, got 'none'"),
        ({"kind": 1}, "kind: expected one of one, several, got 1"),
        ({"sizes": {"a": []}}, "sizes.a: 0 items, expected at least 1"),
        ({"sizes": {"a": 0.5}}, "sizes.a: expected an integer or a text or a list, got 0.5"),
        ({"sizes": {"a": [0.5]}}, r"sizes.a\[0\]: expected an integer or a text, got 0.5"),
        ({"text": "abcd"}, "text: 4 characters, expected at most 3"),
    ):
        with pytest.raises(MalformedError, match=problem):
            Choices.from_json({**written, **change})


def test_an_error_in_a_deeply_nested_value_is_found_at_once() -> None:
    data: dict[str, Any] = {"inner": [{"leaf": 3}]}
    for _ in range(100):
        data = {"inner": [data]}
    with pytest.raises(MalformedError, match=r"inner\[0\].leaf: expected a text, got 3"):
        decode(Node, data)


def test_a_field_may_give_the_scope_of_the_others() -> None:
    @dataclass(frozen=True, slots=True)
    class Scoped:
        json_form: ClassVar[JsonForm] = JsonForm(
            opens=("known",), scope=lambda outer, known: {**outer, **known}
        )

        leaves: tuple[Leaf, ...]
        known: Mapping[str, int]

    Scoped.__annotations__.update(leaves=tuple[Leaf, ...], known=Mapping[str, int])
    data = {"leaves": [{"leaf": "7"}, {"leaf": "0"}], "known": {"7": 7}}
    found = decode(Scoped, data, {"0": 0})
    assert found.leaves == (Leaf(7), Leaf(0))


def test_threads_that_meet_at_the_first_use_of_a_class_compile_it_once() -> None:
    for _ in range(20):

        @dataclass(frozen=True, slots=True)
        class Fresh:
            parts: tuple[Row, ...]

        Fresh.__annotations__.update(parts=tuple[Row, ...])
        start, found = threading.Barrier(4), []

        def read(kind: type = Fresh, start: threading.Barrier = start, found: Any = found) -> None:
            start.wait()
            found.append(decode(kind, {"parts": [["a", 1]]}))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [Fresh((Row("a", 1),))] * 4


def test_infinities_are_read_where_the_class_says_so() -> None:
    @dataclass(frozen=True, slots=True)
    class Loose:
        value: float

    Loose.__annotations__.update(value=Annotated[float, Between(-math.inf, math.inf, finite=False)])
    for stored in (math.inf, "Infinity"):
        assert decode(Loose, {"value": stored}) == Loose(math.inf)
    assert math.isnan(decode(Loose, {"value": "NaN"}).value)
    for wrong in ("1.0", "inf", True, None, []):
        with pytest.raises(MalformedError, match="value: expected a number, got"):
            decode(Loose, {"value": wrong})


def test_what_has_no_form_is_refused_when_it_is_first_used() -> None:
    @dataclass(frozen=True, slots=True)
    class Odd:
        value: complex

    Odd.__annotations__.update(value=complex)
    with pytest.raises(TypeError, match="no JSON form"):
        encode(Odd(1j))
