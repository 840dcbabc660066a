"""Conversion of frozen dataclasses to JSON and back, by code that is generated from the class.

The annotations of the fields define the JSON form, so that a class needs no code of its own for it:

    @dataclass(frozen=True, slots=True)
    class Key(JsonValue):
        workload: str
        threads: Annotated[int, Between(1, 256)] = 1

    Key("w", 2).to_json()                          # {"workload": "w", "threads": 2}
    Key.from_json({"workload": "", "threads": 0})  # expected an integer from 1 to 256, got 0

Fields are strings, integers, finite floats, booleans, enumerations, bytes, tuples, sets, mappings,
other dataclasses, or unions of them. `Between`, `Matching`, `Length` and `Via` annotate a type with
limits or with a custom JSON form. By default, a class is an object with all its fields; `JsonForm`
declares deviations.

Readers validate all data, because the sender may be untrusted. They raise an error for a field that
is unknown, missing or of a wrong type; the error names the field's path, such as
`buffers[3].shape[0]`. Numbers and lengths are bounded.

The reader and the writer of a class are compiled on first use. The reader tests scalars inline and
calls functions only for other values, which makes it about as fast as a handwritten reader.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import functools
import math
import operator
import re
import threading
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from enum import Enum
from functools import cache
from itertools import repeat
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin

from tilewright.compiler.runtime.codec_source import (
    Codec,
    FormField,
    FunctionSource,
    class_reader,
    class_writer,
    opened,
    row_reader,
)
from tilewright.compiler.runtime.json_form import (
    INTEGERS,
    LARGEST_FLOAT,
    NUMBERS,
    WORTH_NAMING,
    Between,
    JsonForm,
    Length,
    MalformedError,
    Matching,
    Read,
    Via,
    Write,
    expected,
    shown,
    within,
)

T = TypeVar("T")


class JsonValue:
    """Base class of dataclasses that have the methods `to_json` and `from_json`."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Convert the instance to JSON data, from which `from_json` builds an equal instance."""
        written: dict[str, Any] = encode(self)
        return written

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Build an instance from JSON data, such as the output of `to_json`.

        Raises:
            MalformedError: if the data are malformed. A class may set `JsonForm.error` in its
                attribute `json_form` to raise another exception instead.
        """
        return decode(cls, data)


def encode(value: Any) -> Any:
    """Convert an instance of a dataclass to JSON data, which `json.dumps` accepts."""
    return _class_codec(type(value)).compiled().write(value)  # type: ignore[arg-type]


def decode(kind: type[T], data: object, scope: Any = None) -> T:
    """Convert JSON data to an instance of a dataclass.

    Args:
        kind: the dataclass.
        data: the result of `json.loads`.
        scope: a value that is passed as second argument to the `read` functions in `Via`
            annotations.

    Raises:
        MalformedError: if the data are malformed; the message names the field. A dataclass may set
            `JsonForm.error` in its attribute `json_form` to raise another exception instead.
    """
    try:
        value: T = _class_codec(kind).compiled().read(data, scope)  # type: ignore[arg-type]
    except ValueError as error:
        form = _form(kind)
        raise form.error(f"malformed {form.what or kind.__name__}: {error}") from error
    return value


_compiling = threading.RLock()


class _ClassCodec:
    """The JSON reader and writer of one dataclass, which are compiled on first use."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._begun = self._done = False
        self.read: Read
        self.write: Write

    def compiled(self) -> Self:
        """Compile the reader and the writer on the first call, and return self.

        If the class has fields of its own type, the compilation calls this method again. The inner
        call returns immediately, before `read` and `write` exist.
        """
        if not self._done:
            with _compiling:
                if not self._begun:
                    self._begun = True
                    kind, form, fields = self._kind, _form(self._kind), _fields(self._kind)
                    self.read = class_reader(kind, form, fields)
                    self.write = class_writer(form, fields, kind.__name__)
                    self._done = True
        return self

    def codec(self) -> Codec:
        """Return the codec for fields that contain instances of this class.

        If the class is still being compiled, because it has fields of its own type, the codec looks
        up `read` and `write` when it is used.
        """
        if self.compiled()._done:
            return Codec(self.read, self.write)
        return Codec(lambda data, scope: self.read(data, scope), lambda value: self.write(value))


@cache
def _class_codec(kind: type) -> _ClassCodec:
    return _ClassCodec(kind)


def _form(kind: type) -> JsonForm:
    form: JsonForm = getattr(kind, "json_form", JsonForm())
    return form


@cache
def _fields(kind: type) -> tuple[FormField, ...]:
    """Return the fields of a dataclass, in the order in which they are written as JSON."""
    form, hints = _form(kind), typing.get_type_hints(kind, include_extras=True)
    found = {}
    for each in dataclasses.fields(kind):
        may_lack = each.name in (*form.sparse, *form.optional)
        found[each.name] = FormField(
            each.name,
            form.names.get(each.name, each.name),
            _codec(hints[each.name]),
            _default(each) if may_lack else None,
            each.name in form.sparse,
        )
    return tuple(found[name] for name in dict.fromkeys((*form.leading, *found)))


def _default(declared: dataclasses.Field[Any]) -> Callable[[], Any]:
    if declared.default_factory is not MISSING:
        return declared.default_factory
    value = () if declared.default is MISSING else declared.default
    return lambda: value


@cache
def _codec(annotation: Any) -> Codec:
    """Return the JSON reader and writer for a type annotation.

    Raises:
        TypeError: if the annotation is not supported.
    """
    kind, *marks = get_args(annotation) if _is_annotated(annotation) else (annotation,)
    limits: Between | None = None
    length, pattern = Length(), ""
    for mark in marks:
        match mark:
            case Via():
                return _via(mark)
            case Between():
                limits = mark
            case Length():
                length = mark
            case Matching(expression):
                pattern = expression
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is int:
        return _integer(limits or INTEGERS)
    if origin is float:
        return _number(limits or NUMBERS)
    if origin is str:
        return _text(pattern, length)
    if origin is bool:
        return Codec(_read_bool, None, "type($) is bool")
    if origin is bytes:
        return _via(Via(str, _from_base64, _to_base64))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed_tuple([_codec(each) for each in arguments])
    if origin in (tuple, frozenset):
        return _items(origin, _codec(arguments[0]), length)
    if origin is Mapping or origin is collections.abc.Mapping:
        return _mapping(_codec(arguments[0]), _codec(arguments[1]), length)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _constants(arguments)
    if origin is Any:
        return Codec(lambda data, _: data, None, "True")
    if isinstance(origin, type) and issubclass(origin, Enum):
        return _enumeration(origin)
    if dataclasses.is_dataclass(origin):
        return _class_codec(typing.cast(type, origin)).codec()
    raise TypeError(f"{annotation} has no JSON form")


def _is_annotated(annotation: Any) -> bool:
    return get_origin(annotation) is typing.Annotated


def _via(mark: Via) -> Codec:
    inner, write, read = _codec(mark.form), mark.write, mark.read
    take, put = inner.read, inner.write
    return Codec(
        lambda data, scope: read(take(data, scope), scope),
        write if put is None else lambda value: put(write(value)),
        "" if mark.own is None else _codec(mark.own).is_own_form,
    )


def _read_bool(data: Any, _: Any) -> Any:
    raise expected("true or false", data)


def _read_text(data: Any, _: Any) -> Any:
    if type(data) is not str:
        raise expected("a text", data)
    return data


def _integer(limits: Between) -> Codec:
    least, most = limits.least, limits.most
    what = "an integer" if limits == INTEGERS else f"an integer from {least}"
    what += f" to {most}" if most < WORTH_NAMING else ""

    def read(data: Any, _: Any) -> int:
        if type(data) is not int or not least <= data <= most:
            raise expected(what, data)
        return data

    return Codec(read, None, f"type($) is int and {least} <= $ <= {most}")


def _number(limits: Between) -> Codec:
    """Return the codec of a float within limits. The reader also accepts integers."""
    if not limits.finite:
        return Codec(_read_any_number, None, "type($) is float")
    least, most, above = float(limits.least), float(limits.most), limits.above
    what = "a number"
    if limits != NUMBERS:
        what += f" {'above' if above else 'from'} {least:g}"
        what += f" to {most:g}" if most < math.inf else ""

    def read(data: Any, _: Any) -> float:
        found = float(data) if type(data) is int and abs(data) < LARGEST_FLOAT else data
        finite = type(found) is float and math.isfinite(found)
        if not (finite and least <= found <= most and not (above and found == least)):
            raise expected(what, data)
        return typing.cast(float, found)

    test = "$ * 0.0 == 0.0"  # finite
    if limits != NUMBERS:
        test = f"{least!r} {'<' if above else '<='} $ {'<' if most == math.inf else '<='} {most!r}"
    return Codec(read, None, f"type($) is float and {test}")


def _read_any_number(data: Any, scope: Any) -> float:
    if type(data) is float or data in ("NaN", "Infinity", "-Infinity"):
        return float(data)
    return typing.cast(float, _codec(float).read(data, scope))


def _text(pattern: str, length: Length) -> Codec:
    """Return the codec of a string that must match `pattern` and have an allowed length.

    With the default `Length()` and no pattern, strings of any length are accepted.
    """
    if not pattern and length == Length():
        return Codec(_read_text, None, "type($) is str")
    matches = re.compile(pattern or ".*", re.DOTALL).fullmatch

    def read(data: Any, scope: Any) -> str:
        text: str = _read_text(data, scope)
        length.check(text, "characters")
        if matches(text) is None:
            raise expected(f"a text of the form {pattern}", data)
        return text

    return Codec(read)


def _from_base64(text: str, _: Any) -> bytes:
    return base64.b64decode(text, validate=True)


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _enumeration(kind: type[Enum]) -> Codec:
    members = {each.value: each for each in kind}

    def read(data: Any, _: Any) -> Any:
        found = members.get(data) if type(data) is str else None
        if found is None:
            raise expected(f"one of {', '.join(map(str, members))}", data)
        return found

    return Codec(read, operator.attrgetter("value"))


def _constants(known: tuple[str, ...]) -> Codec:
    """Return the codec of a string that must be one of `known` (a `Literal` annotation)."""

    def read(data: Any, _: Any) -> Any:
        if type(data) is not str or data not in known:
            raise expected(f"one of {', '.join(known)}", data)
        return data

    return Codec(read)


def _items(kind: type, one: Codec, length: Length) -> Codec:
    """Return the codec of a JSON list whose items have one type.

    The reader returns a `kind`, which is tuple or frozenset. `one` is the codec of an item.
    """

    def checked(data: Any) -> Any:
        if type(data) is not list and type(data) is not tuple:
            raise expected("a list", data)
        length.check(data, "items")
        return data

    put, source = one.write, FunctionSource()
    items = f"[{source.reading(one, 'v')} for v in at]"
    if not one.is_own_form:
        items = f"map({source.name(one.read, 'read')}, at, repeat(scope))"
    source.values |= {"checked": checked, "repeat": repeat, "place": lambda n, _: f"[{n}]"}
    source.lines = _each(f"{kind.__name__}({items})", "type(data) is list", "data", length)
    read = source.compiled("data, scope", "a list")
    if kind is frozenset:
        return Codec(read, sorted)
    return Codec(read, list if put is None else lambda value: [put(each) for each in value])


def _mapping(key: Codec, one: Codec, length: Length) -> Codec:
    def checked(data: Any) -> dict[Any, Any]:
        found = dict(opened(data))
        length.check(found, "entries")
        return found

    put, source = one.write, FunctionSource()
    # Names of entries in JSON are always texts.
    name = "k" if key is _codec(str) else f"({source.reading(key, 'k')})"
    made = f"{{{name}: ({source.reading(one, 'v')}) for k, v in at}}"
    source.values |= {"checked": checked, "place": lambda n, data: shown(list(data)[n])}
    source.lines = _each(made, "type(data) is dict", "data.items()", length)
    if name == "k" and one.is_own_form == "True":
        source.lines[1:] = ["return data.copy()"]
    read = source.compiled("data, scope", "an object")
    if put is None:
        return Codec(read, dict)
    return Codec(read, lambda value: {name: put(v) for name, v in value.items()})


def _each(made: str, is_usual: str, items: str, length: Length) -> list[str]:
    """Return the source lines of a reader that converts all items of a list or an object.

    In these lines, the variable `data` has the JSON data, and `at` is an iterator over its items.
    If an item is malformed, the lines add its position to the error.

    Args:
        made: source of the result, an expression that consumes `at`.
        is_usual: source of a test whether `data` has the expected JSON type.
        items: source of the iterable over the items.
        length: the allowed number of items.
    """
    fits = f"{is_usual} and {length.least} <= len(data) <= {length.most}"
    return [
        f"if not ({fits}): data = checked(data)",
        f"at = iter({items})",
        f"try: return {made}",
        "except ValueError as error:",
        "    number = len(data) - at.__length_hint__() - 1",
        "    raise within(error, place(number, data)) from None",
    ]


def _fixed_tuple(parts: list[Codec]) -> Codec:
    """Return the codec of a tuple of fixed length, given a codec for each item."""
    numbered = [(part, f"[{number}]") for number, part in enumerate(parts)]
    made = f"({''.join(f'a{number}, ' for number in range(len(parts)))})"
    puts = [part.write or (lambda value: value) for part in parts]
    return Codec(
        row_reader(numbered, made, FunctionSource()),
        lambda value: [put(v) for put, v in zip(puts, value, strict=True)],
    )


def _union(kinds: tuple[Any, ...]) -> Codec:
    """Return the codec of a union type.

    Three kinds of unions are supported: a type or None; different scalars and at most one tuple
    type, which are distinguished by their JSON type; and dataclasses, which `_tagged` handles.
    """
    if type(None) in kinds:
        others = [kind for kind in kinds if kind is not type(None)]
        return _optional(_codec(functools.reduce(operator.or_, others)))
    if all(dataclasses.is_dataclass(kind) for kind in kinds):
        return _tagged(kinds)
    known = {_json_type(kind): _codec(kind) for kind in kinds}

    def read(data: Any, scope: Any) -> Any:
        found = known.get(list if type(data) is tuple else type(data))
        if found is None:
            raise expected(" or ".join(_WORDS[kind] for kind in known), data)
        return found.read(data, scope)

    if (items := known.get(list)) is None:
        tests = [each.is_own_form for each in known.values()]
        return Codec(read, None, " or ".join(f"({each})" for each in tests) if all(tests) else "")
    put = typing.cast(Callable[[Any], Any], items.write)
    return Codec(read, lambda value: put(value) if type(value) is tuple else value)


_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
}


def _json_type(annotation: Any) -> type:
    """Return the Python type of a union member's JSON data, such as `list` for a tuple.

    Raises:
        TypeError: if the member is neither a scalar nor a tuple.
    """
    kind = get_args(annotation)[0] if _is_annotated(annotation) else annotation
    kind = list if get_origin(kind) is tuple else kind
    if kind not in _WORDS:
        raise TypeError(f"{annotation} cannot be distinguished from the other types of its union")
    return typing.cast(type, kind)


def _optional(inner: Codec) -> Codec:
    read, put = inner.read, inner.write
    return Codec(
        lambda data, scope: None if data is None else read(data, scope),
        None if put is None else lambda value: None if value is None else put(value),
        f"$ is None or ({inner.is_own_form})" if inner.is_own_form else "$ is None",
    )


def _tagged(kinds: tuple[type, ...]) -> Codec:
    """Return the codec of a union of dataclasses.

    A class is recognised by the value of the first entry of `JsonForm.constants`, if all classes
    have this entry. Otherwise, it is recognised by the presence of its first field.
    """
    codecs = {kind: _class_codec(kind) for kind in kinds}
    tags = {next(iter(_form(kind).constants), "") for kind in kinds}
    tag = tags.pop() if len(tags) == 1 else ""

    @cache
    def table() -> dict[str, _ClassCodec]:
        """Return the codec of each class, by the value of its constant or the name of its first
        field.

        The table is built on first use, because a class with fields of its own type is not yet
        complete when this codec is created.
        """
        if tag:
            found = {_form(kind).constants[tag]: codec for kind, codec in codecs.items()}
        else:
            found = {_fields(kind)[0].key: codec for kind, codec in codecs.items()}
        return {key: codec.compiled() for key, codec in found.items()}

    def read(data: Any, scope: Any) -> Any:
        data = opened(data) if type(data) is not dict else data
        if tag:
            value = data.get(tag)
            found = table().get(value) if type(value) is str else None
            if found is None:
                raise within(expected(f"one of {', '.join(table())}", value), tag)
            return found.read(data, scope)
        for name, codec in table().items():
            if name in data:
                return codec.read(data, scope)
        raise MalformedError(f"expected one of the fields {', '.join(table())}")

    def write(value: Any) -> Any:
        return codecs[type(value)].compiled().write(value)

    return Codec(read, write)
